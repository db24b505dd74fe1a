"""One process with two threads, or two processes with one thread each: texts per second on two cores.

    python benchmarks/processes.py NAME FAST FILE [--text-column text]

FAST is an adapted model; the rows of FILE are repeated to 4,000 texts. Every process loads the model, waits for the
others, and predicts its share of the texts in the default batches, with the model's policy and with `never`. The record
goes to benchmarks/results/processes, from which write_performance.py writes a section of docs/results/speed.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import statistics
import time
from datetime import date
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import offramp
from offramp.core.machine import cpu_name

RESULTS = Path(__file__).parent / "results" / "processes"
TEXTS, ROUNDS, CORES = 4000, 3, 2


def predict(folder: str, texts: list[str], threads: int, policy: str | None, start: Barrier, end: Barrier) -> None:
    """Load the model, and predict the texts between the two barriers, once for every round."""
    runner = offramp.load(folder, threads=threads)
    runner.answer(texts[:200], policy=policy, quiet=True)
    for _ in range(ROUNDS):
        start.wait()
        runner.answer(texts, policy=policy, quiet=True)
        end.wait()


def texts_per_second(folder: str, texts: list[str], processes: int, policy: str | None) -> float:
    """Return the median over the rounds."""
    context = multiprocessing.get_context("spawn")
    start, end = context.Barrier(processes + 1), context.Barrier(processes + 1)
    shares = [texts[number::processes] for number in range(processes)]
    workers = [
        context.Process(target=predict, args=(folder, share, CORES // processes, policy, start, end))
        for share in shares
    ]
    for worker in workers:
        worker.start()
    seconds = []
    for _ in range(ROUNDS):
        start.wait()
        begin = time.perf_counter()
        end.wait()
        seconds.append(time.perf_counter() - begin)
    for worker in workers:
        worker.join()
    return len(texts) / statistics.median(seconds)


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("fast")
    parser.add_argument("file", type=Path)
    parser.add_argument("--text-column", default="text")
    args = parser.parse_args()
    with args.file.open(encoding="utf-8", newline="") as file:
        rows = [row[args.text_column] for row in csv.DictReader(file)]
    texts = (rows * (TEXTS // len(rows) + 1))[:TEXTS]
    results: list[dict[str, Any]] = [
        {
            "policy": policy or "early exits",
            "processes": processes,
            "texts_per_second": texts_per_second(
                args.fast, texts if policy is None else texts[:1000], processes, policy
            ),
        }
        for policy, selected in ((None, texts), ("never", texts[:1000]))
        for processes in (1, CORES)
    ]
    config = offramp.load(args.fast, threads=1).config
    encoder = f"{config.num_layers} × {config.hidden_size}"
    record = {"name": args.name, "encoder": encoder, "date": date.today().isoformat(), "cpu": cpu_name()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{args.name}.json").write_text(json.dumps(record | {"results": results}, indent=1) + "\n", "utf-8")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
