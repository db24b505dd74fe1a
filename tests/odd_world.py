"""A folder with one of everything that commands read, and others' things beside it; copied afresh for every case."""

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

MODELS = ("model", "multi", "value", "two")  # of three classes, several labels, a value, two classes

USUAL: dict[str, list[str]] = {  # a call of each command that goes well
    "predict": ["predict", "model", "data/texts.txt"],
    "evaluate": ["evaluate", "model", "--file", "data/dev.csv", *EVALUATE, "--output", "out"],
    "calibrate": ["calibrate", "model", "--file", "data/dev.csv", "--risk", "0.3"],
    "compare": ["compare", "run", "other-run"],
    "info": ["info", "model"],
    "convert": ["convert", "checkpoint", "--output", "out"],
    "train": ["train", "encoder", *TRAIN, "--output", "out", *ONE_STEP],
}


def build(world: Path) -> None:
    """Everything, in a folder of which all paths are absolute, as commands write them."""
    world.mkdir(parents=True)
    os.chdir(world)
    data = write_data(world / "data")
    write_glue(world / "glue")
    write_model(world / "model", "bert", data, lte=True)
    (world / "model-encoder").rename("encoder")
    _of_another_kind(world / "multi", "multi_label_classification", "entropy:0.2", labels=LABELS)
    _of_another_kind(world / "value", "regression", "patience:1:0.5", num_labels=1)
    _of_another_kind(world / "two", "single_label_classification", "entropy:0.2", labels=["0", "1"])
    shutil.copytree(GOLDEN, "checkpoint")
    (world / "neighbour").mkdir()
    for name in ("neighbour/notes.md", "neighbour/.hidden", "neighbour.txt"):
        (world / name).write_text("nobody may touch this\n")
    (world / "reference.csv").write_text("flops,score\n1000,0.2\n900000,0.5\n9000000,0.8\n")
    call = ["evaluate", "model", "--no-live", "--policy", "entropy", "--policy", "patience", "--output", "run"]
    assert attempt(call).code == 0
    shutil.copytree("run", "other-run")
    (world / "run" / "trace.safetensors").rename("trace.safetensors")
    _begin()


def _of_another_kind(folder: Path, answer_type: str, policy: str, **options: object) -> None:
    made = adaptive("bert", folder.with_name("other-encoder"), problem_type=answer_type, policy=policy, **options)
    made.save_pretrained(folder)
    shutil.rmtree(folder.with_name("other-encoder"))


def _begin() -> None:
    """A run that was stopped: its checkpoints are there and its model is not."""
    outcome = attempt(
        [*USUAL["train"], "--output", "begun", "--max-steps", "2", "--save-every", "1", "--keep-checkpoints"]
    )
    assert outcome.code == 0, outcome.err
    for name in ("config.json", "model.safetensors", "rows.safetensors", "scores.json", "README.md"):
        (Path("begun") / name).unlink()
    shutil.rmtree(next(Path("begun/checkpoints").glob("*/done")))
    settings = yaml.safe_load(Path("begun/training.yaml").read_text("utf-8"))
    Path("config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def renew(kept: Path, world: Path) -> None:
    """The world as it was."""
    if world.exists():
        unlock(world)
        shutil.rmtree(world)
    shutil.copytree(kept, world, symlinks=True)


def unlock(folder: Path) -> None:
    """Let what a case locked be removed again."""
    for place, folders, _ in os.walk(folder):
        for name in folders:
            if not (path := Path(place) / name).is_symlink():
                path.chmod(0o755)


def model_of(chance: random.Random) -> str:
    """Mostly a classifier, at times one of several labels, or of values."""
    return chance.choice(["model"] * 6 + [*MODELS[1:]])
