"""The fuzzing folder: everything that commands read, and files of the user; a fresh copy for every case."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import yaml

from tests.attempts import attempt
from tests.reviews import write_glue
from tests.tampering import LABELS, write_data, write_model
from tests.tiny import adaptive

GOLDEN = Path(__file__).parent / "golden" / "deebert-bert-2" / "checkpoint"
TRAIN = ["--train-file", "data/train.csv", "--dev-file", "data/dev.csv", "--cpu", "--batch-size", "8"]
ONE_STEP = ["--max-steps", "1"]
EVALUATE = ["--no-live", "--policy", "patience"]

MODELS = ("model", "multi", "value", "two")  # three classes, multi-label, regression, two classes

USUAL: dict[str, list[str]] = {  # a successful call of each command
    "predict": ["predict", "model", "data/texts.txt"],
    "evaluate": ["evaluate", "model", "--file", "data/dev.csv", *EVALUATE, "--output", "out"],
    "calibrate": ["calibrate", "model", "--file", "data/dev.csv", "--risk", "0.3"],
    "compare": ["compare", "run", "other-run"],
    "info": ["info", "model"],
    "convert": ["convert", "checkpoint", "--output", "out"],
    "train": ["train", "encoder", *TRAIN, "--output", "out", *ONE_STEP],
}


def build(world: Path) -> None:
    """Build the folder."""
    world.mkdir(parents=True)
    os.chdir(world)
    data = write_data(world / "data")
    write_glue(world / "glue")
    write_model(world / "model", "bert", data, lte=True)
    (world / "model-encoder").rename("encoder")
    _save_model(world / "multi", "multi_label_classification", "entropy:0.2", labels=LABELS)
    _save_model(world / "value", "regression", "patience:1:0.5", num_labels=1)
    _save_model(world / "two", "single_label_classification", "entropy:0.2", labels=["0", "1"])
    shutil.copytree(GOLDEN, "checkpoint")
    (world / "neighbour").mkdir()
    for name in ("neighbour/notes.md", "neighbour/.hidden", "neighbour.txt"):
        (world / name).write_text("must not be changed\n")
    (world / "reference.csv").write_text("flops,score\n1000,0.2\n900000,0.5\n9000000,0.8\n")
    call = ["evaluate", "model", "--no-live", "--policy", "entropy", "--policy", "patience", "--output", "run"]
    assert attempt(call).code == 0
    shutil.copytree("run", "other-run")
    (world / "run" / "trace.safetensors").rename("trace.safetensors")
    _interrupt_run()


def _save_model(folder: Path, answer_type: str, policy: str, **options: object) -> None:
    model = adaptive("bert", folder.with_name("other-encoder"), problem_type=answer_type, policy=policy, **options)
    model.save_pretrained(folder)
    shutil.rmtree(folder.with_name("other-encoder"))


def _interrupt_run() -> None:
    """Make an interrupted run: checkpoints without a model."""
    outcome = attempt(
        [*USUAL["train"], "--output", "begun", "--max-steps", "2", "--save-every", "1", "--keep-checkpoints"]
    )
    assert outcome.code == 0, outcome.err
    for name in ("config.json", "model.safetensors", "rows.safetensors", "scores.json", "README.md"):
        (Path("begun") / name).unlink()
    shutil.rmtree(next(Path("begun/checkpoints").glob("*/done")))
    settings = yaml.safe_load(Path("begun/training.yaml").read_text("utf-8"))
    Path("config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def renew(original: Path, world: Path) -> None:
    """Restore the folder from its copy."""
    if world.exists():
        unlock(world)
        shutil.rmtree(world)
    shutil.copytree(original, world, symlinks=True)


def unlock(folder: Path) -> None:
    """Restore permissions, so that everything can be removed."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            if not (path := Path(parent) / name).is_symlink():
                path.chmod(0o755)


def model_of(chance: random.Random) -> str:
    """Return the name of a model, mostly the classifier."""
    return chance.choice(["model"] * 6 + [*MODELS[1:]])
