"""What `offramp adapt` costs, and how well it forecasts the time of the adapted model.

    python benchmarks/adapting.py NAME CLASSIFIER FILE --text-column text [--describe TEXT] [--risk 0.02] [--threads 1]
    python benchmarks/adapting.py reviews --write reviews.txt --data DIR

Each run is `offramp adapt CLASSIFIER FILE --backend onnx` in a process of its own, on an otherwise idle machine: its
seconds, CPU seconds, the seconds of every step, and the forecast of the time per text beside the measured time (both in
`calibration.json`). The second form writes texts of very different lengths: passages of one to five sentences of the
film reviews in DIR/ELUE/IMDb. Records go to benchmarks/results/adapting, from which write_performance.py writes a
section of docs/results/speed.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import offramp
from offramp.core.machine import cpu_name, usable_threads

RESULTS = Path(__file__).parent / "results" / "adapting"
LONGEST = 5  # sentences of a passage
STEP = re.compile(r"Step (\d) of (\d): ")


def passages(data: Path, count: int) -> list[str]:
    """Return passages of film reviews, most of them short: a passage has k sentences with a probability like 1 / k."""
    generator, texts = random.Random(0), []
    weights = [1 / number for number in range(1, LONGEST + 1)]
    for line in (data / "ELUE" / "IMDb" / "train_subset.tsv").read_text("utf-8-sig").split("\n")[1:]:
        sentences = re.split(r"(?<=[.!?])\s+", line.split("\t")[0].replace("<br />", " ").replace("\x85", "…"))
        while sentences:
            length = generator.choices(range(1, LONGEST + 1), weights)[0]
            texts.append(" ".join(" ".join(sentences[:length]).split()))
            sentences = sentences[length:]
    texts = sorted({text for text in texts if len(text) > 10})
    generator.shuffle(texts)
    return texts[:count]


def lengths_of(folder: Path, file: Path, column: str | None) -> dict[str, float]:
    """Return the number of texts, and their mean, median and longest length in tokens."""
    with file.open(encoding="utf-8", newline="") as opened:
        texts = [row[column] for row in csv.DictReader(opened)] if column else opened.read().splitlines()
    lengths = offramp.load(folder, threads=1).encoder()(texts, 0).lengths
    return {
        "texts": len(texts),
        "mean_tokens": float(lengths.mean()),
        "median_tokens": float(np.median(lengths)),
        "longest": int(lengths.max()),
    }


def adapt(args: argparse.Namespace, output: Path) -> tuple[float, float, list[float]]:
    """Run the command; return its seconds, its CPU seconds and the second at which every step began."""
    command = [sys.executable, "-m", "offramp", "adapt", args.classifier, args.file, "--backend", "onnx"]
    command += ["--risk", str(args.risk), "--confidence", "0.9", "--output", str(output)]
    command += ["--text-column", args.text_column] if args.text_column else []
    command += ["--threads", str(args.threads)] if args.threads else []
    command += ["--max-length", str(args.max_length)] if args.max_length else []
    start, steps = time.monotonic(), []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{time.monotonic() - start:7.1f}  {line}", end="", flush=True)
        if STEP.match(line):
            steps.append(time.monotonic() - start)
    if process.wait() != 0:
        raise SystemExit(f"adapt ended with code {process.returncode}.")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, steps


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the record of a run."""
    with tempfile.TemporaryDirectory() as work:
        output = Path(work) / "fast"
        seconds, cpu_seconds, steps = adapt(args, output)
        evidence = json.loads((output / "onnx" / "calibration.json").read_text("utf-8"))
        lengths = lengths_of(output, Path(args.file), args.text_column)
        config = offramp.load(output, threads=1).config
    return {
        "name": args.name,
        "describe": args.describe or args.name,
        "encoder": f"{config.num_layers} × {config.hidden_size}",
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "cores": usable_threads(),
        "threads": args.threads,
        **lengths,
        "risk": args.risk,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "steps": steps,
        "exits": evidence["tuned"]["exits"],
        "forecast": evidence["tuned"]["modelled_seconds"],
        "measured": evidence["tuned"]["seconds"],
    }


def main() -> None:
    """Run and write the record, or write the passages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("classifier", nargs="?")
    parser.add_argument("file", nargs="?")
    parser.add_argument("--text-column")
    parser.add_argument("--describe", help="the model and the texts, for the page (default: NAME)")
    parser.add_argument("--risk", type=float, default=0.02)
    parser.add_argument("--threads", type=int, help="of the adapted model (default: all)")
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--write", type=Path, help="write passages of reviews to this file instead")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--count", type=int, default=4500)
    args = parser.parse_args()
    if args.write:
        args.write.write_text("".join(f"{text}\n" for text in passages(args.data, args.count)), "utf-8")
        return
    record = measure(args)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{args.name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
