"""A million short rows on Ray and in a single process: total seconds and memory.

    python benchmarks/cluster.py [--rows 1000000] [--workers 2]

The model is tiny and random, so that mostly reading, splitting, sorting and writing are measured. The input is ten
Parquet files. The single process is `offramp predict` on the same texts, one per line, with one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

from million_lines import make_model, write_lines
from offramp.core.machine import cpu_name
from setting import read_texts

RESULTS = Path(__file__).parent / "results" / "cluster.json"


def workers_memory() -> float:
    """Return the largest peak resident size of a worker, in MB."""
    peak = 0
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and (path / "cmdline").read_bytes().startswith(b"ray::MapWorker"):
                lines = (path / "status").read_text().splitlines()
                peak = max(peak, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
        except (OSError, TypeError):
            continue
    return peak / 1024


def run(command: list[str]) -> dict[str, float]:
    """Run `offramp predict`; return seconds and memory in MB (of its workers, if any)."""
    peak, finished = [0.0], threading.Event()

    def poll_memory() -> None:
        while not finished.wait(0.5):
            peak[0] = max(peak[0], workers_memory())

    thread = threading.Thread(target=poll_memory)
    thread.start()
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "offramp", "predict", *command])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    finished.set()
    thread.join()
    if status:
        raise SystemExit(f"offramp predict failed with status {status}")
    return {"seconds": seconds, "memory": peak[0] or usage.ru_maxrss / 1024, "driver": usage.ru_maxrss / 1024}


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    texts = [" ".join(text.split()[:12]) for text in read_texts(None, 5000)]
    results: dict[str, Any] = {"date": date.today().isoformat(), "cpu": cpu_name(), "rows": args.rows}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", texts)
        write_lines(folder / "rows.txt", texts, args.rows)
        for part in range(10):
            numbers = range(part * args.rows // 10, (part + 1) * args.rows // 10)
            table = pa.table({"id": list(numbers), "text": [texts[number % len(texts)] for number in numbers]})
            pa.parquet.write_table(table, folder / f"{part}.parquet")
        model, single = str(folder / "model"), ["--output", str(folder / "answers.jsonl"), "--threads", "1"]
        results["one process"] = run([model, str(folder / "rows.txt"), *single])
        ray = ["--engine", "ray", "--workers", str(args.workers), "--output", str(folder / "answers")]
        results["ray"] = run([model, str(folder / "*.parquet"), *ray]) | {"workers": args.workers}
        ids = pa.dataset.dataset(folder / "answers").to_table(columns=["id"])["id"]
        assert sorted(ids.to_pylist()) == list(range(args.rows)), "missing or duplicate ids"
    print(json.dumps(results, indent=1))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
