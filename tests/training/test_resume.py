"""Killed and resumed, and in several processes: the same weights."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from offramp import AdaptiveModel
from offramp.training.run import train
from offramp.training.settings import Settings
from tests import programs
from tests.reviews import settings, weights, write_glue
from tests.tiny import save_encoder


def command(wanted: Settings, file: Path, *more: str) -> list[str]:
    file.write_text(yaml.safe_dump(asdict(wanted)))
    return ["train", "--config", str(file), *more]


def die_behind_a_checkpoint(stage: str, steps: int) -> None:
    """Kill −9 as soon as a checkpoint is written, so far in that stage."""
    from offramp.training import trainer

    save = trainer.ExitTrainer._save_checkpoint

    def die(self, *args):
        save(self, *args)
        if self.state.global_step >= steps and Path(self.args.output_dir).name.startswith(stage):
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.ExitTrainer._save_checkpoint = die


@pytest.mark.parametrize(
    ("recipe", "steps", "more"),
    [
        ("romebert-sd-gr", 8, {"accumulation": 2}),
        ("deebert", 8, {"accumulation": 2}),
        ("ebert", 8, {"recipe_options": {"ffn_block": 4}}),
        ("berxit-alternating", 7, {"accumulation": 2}),
        ("joint", 8, {"epochs": 20, "select": "mean", "early_stopping": 3}),
    ],
)
def test_killed_and_resumed_is_the_same_as_never_stopped(recipe, steps, more, encoders, glue, tmp_path):
    """Kill −9 behind a checkpoint in the middle of an epoch (of a second stage too), then resume."""
    options = {"recipe": recipe, "epochs": 4, "save_every": 2, "eval_every": 2, "select": "none"} | more
    whole = command(settings(encoders["bert"], glue, tmp_path / "whole", **options), tmp_path / "whole.yaml")
    torn = command(settings(encoders["bert"], glue, tmp_path / "torn", **options), tmp_path / "torn.yaml")
    stage = "2" if recipe in ("deebert", "ebert") else "1"
    ended, killed = programs.run(
        (programs.offramp, whole), (programs.offramp, torn, die_behind_a_checkpoint, stage, steps)
    )
    assert ended.code == 0, ended.stderr
    assert killed.code == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "torn" / "config.json").exists()
    half = max((tmp_path / "torn" / "checkpoints").glob("*/checkpoint-*"), key=lambda path: path.stat().st_mtime)
    (half.parent / "checkpoint-999").mkdir()  # and one that was torn while it was written
    (half.parent / "checkpoint-999" / "trainer_state.json").write_text("{")
    (done,) = programs.run((programs.offramp, [*torn, "--resume"]))
    assert done.code == 0, done.stderr
    assert "Going on from" in done.stderr
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "torn")
    assert all(torch.equal(one[name], two[name]) for name in one)


def as_rank(rank: int, port: str) -> None:
    """The environment that torchrun gives to each of two processes."""
    place = {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ.update(place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})


def by_hand(call: list[str]) -> str:
    """Two processes with torchrun's environment; what they print."""
    port = _port()
    ranks = programs.run(*((programs.offramp, call, as_rank, rank, port) for rank in range(2)))
    assert [rank.code for rank in ranks] == [0, 0], "".join(rank.stderr for rank in ranks)
    return "".join(rank.stdout for rank in ranks)


def by_torchrun(call: list[str]) -> str:
    """The launcher itself."""
    run = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", _port(), "-m", "offramp"]
    done = subprocess.run([sys.executable, "-m", *run, *call], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("recipe", "accumulation", "launch"),
    [
        ("joint", 1, by_torchrun),
        ("romebert-sd-gr", 1, by_hand),
        ("romebert-sd-gr", 2, by_hand),
        ("deebert", 1, by_hand),
    ],
)
def test_two_processes_are_one_with_the_same_batch(recipe, accumulation, launch, tmp_path):
    """The same global batch on one process and on two over gloo: losses and weights agree up to float order."""
    data = write_glue(tmp_path / "glue", 64, 8)
    quiet = save_encoder_without_dropout(tmp_path / "encoder")
    options = {
        "recipe": recipe,
        "calibration_split": 0.0,
        "select": "none",
        "accumulation": accumulation,
        "learning_rate": 1e-3,
        "log_every": 1,
    }
    one = train(settings(quiet, data, tmp_path / "one", **options | {"batch_size": 8}))
    two = settings(quiet, data, tmp_path / "two", **options | {"batch_size": 4})
    assert launch(command(two, tmp_path / "two.yaml")).count("Wrote") == 1
    mine, theirs = weights(one.folder), weights(tmp_path / "two")
    moved = AdaptiveModel.from_backbone(quiet, num_labels=2).backbone.state_dict()
    for name, value in mine.items():
        assert torch.allclose(value, theirs[name], atol=2e-5), (name, float((value - theirs[name]).abs().max()))
    assert any(
        not torch.equal(moved[name.removeprefix("backbone.")], value) for name, value in mine.items() if "query" in name
    )
    losses = [_losses(folder) for folder in (one.folder, tmp_path / "two")]
    assert np.allclose(*losses, atol=1e-4), losses


def _losses(folder) -> list[float]:
    stages = json.loads((Path(folder) / "scores.json").read_text())["stages"]
    return [entry["loss"] for stage in stages for entry in stage["history"] if "loss" in entry]


def _port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def save_encoder_without_dropout(folder):
    save_encoder("bert", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
