"""Killed and resumed runs, and runs in several processes, give the same weights."""

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


def command(run_settings: Settings, file: Path) -> list[str]:
    file.write_text(yaml.safe_dump(asdict(run_settings)))
    return ["train", "--config", str(file)]


def die_after_a_checkpoint(stage: str, steps: int) -> None:
    """Kill −9 as soon as a checkpoint at this step of the stage is written."""
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
    """Kill −9 after a checkpoint in the middle of an epoch (of a second stage too), then resume."""
    options = {"recipe": recipe, "epochs": 4, "save_every": 2, "eval_every": 2, "select": "none"} | more
    full_call = command(settings(encoders["bert"], glue, tmp_path / "full", **options), tmp_path / "full.yaml")
    killed_call = command(settings(encoders["bert"], glue, tmp_path / "killed", **options), tmp_path / "killed.yaml")
    stage = "2" if recipe in ("deebert", "ebert") else "1"
    ended, killed = programs.run(
        (programs.offramp, full_call), (programs.offramp, killed_call, die_after_a_checkpoint, stage, steps)
    )
    assert ended.code == 0, ended.stderr
    assert killed.code == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "killed" / "config.json").exists()
    newest = max((tmp_path / "killed" / "checkpoints").glob("*/checkpoint-*"), key=lambda path: path.stat().st_mtime)
    (newest.parent / "checkpoint-999").mkdir()  # and an incomplete checkpoint
    (newest.parent / "checkpoint-999" / "trainer_state.json").write_text("{")
    (done,) = programs.run((programs.offramp, [*killed_call, "--resume"]))
    assert done.code == 0, done.stderr
    assert "Resuming from" in done.stdout
    expected, resumed = weights(tmp_path / "full"), weights(tmp_path / "killed")
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


def as_rank(rank: int, port: str) -> None:
    """The environment that torchrun gives to each of two processes."""
    variables = {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ.update(variables | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})


def run_rank(call: list[str], rank: int, port: str) -> int:
    """Run the command line as one of two ranks; a thread of gloo that is left would abort the process at its end."""
    code = programs.offramp(call, as_rank, rank, port)
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in threads if "gloo" in name], threads
    return code


def by_hand(call: list[str]) -> str:
    """Run two processes with torchrun's environment; return what they print."""
    port = _port()
    ranks = programs.run(*((run_rank, call, rank, port) for rank in range(2)))
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
    encoder = save_encoder_without_dropout(tmp_path / "encoder")
    options = {
        "recipe": recipe,
        "calibration_split": 0.0,
        "select": "none",
        "accumulation": accumulation,
        "learning_rate": 1e-3,
        "log_every": 1,
    }
    single = train(settings(encoder, data, tmp_path / "one", **options | {"batch_size": 8}))
    two_settings = settings(encoder, data, tmp_path / "two", **options | {"batch_size": 4})
    assert launch(command(two_settings, tmp_path / "two.yaml")).count("Wrote") == 1
    expected, distributed = weights(single.folder), weights(tmp_path / "two")
    before = AdaptiveModel.from_backbone(encoder, num_labels=2).backbone.state_dict()
    for name, value in expected.items():
        difference = float((value - distributed[name]).abs().max())
        assert torch.allclose(value, distributed[name], atol=2e-5), (name, difference)
    queries = [name for name in expected if "query" in name]
    assert any(not torch.equal(before[name.removeprefix("backbone.")], expected[name]) for name in queries)
    losses = [_losses(folder) for folder in (single.folder, tmp_path / "two")]
    assert np.allclose(*losses, atol=1e-4), losses


def _losses(folder) -> list[float]:
    stages = json.loads((Path(folder) / "scores.json").read_text())["stages"]
    return [entry["loss"] for stage in stages for entry in stage["history"] if "loss" in entry]


def _port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def save_encoder_without_dropout(folder):
    save_encoder("bert", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
