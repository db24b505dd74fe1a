"""A million short rows on Ray, against one process: seconds, everything included, and memory.

    python benchmarks/cluster.py [--rows 1000000] [--workers 2]

A tiny random model, so that reading, splitting, sorting and writing are what is measured; ten Parquet files. The one
process is `offramp predict` on the same texts as plain lines, with one thread, as each worker has.
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
    """The largest resident size, ever, of a process that holds a model, in MB."""
    most = 0
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and (place / "cmdline").read_bytes().startswith(b"ray::MapWorker"):
                lines = (place / "status").read_text().splitlines()
                most = max(most, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
        except (OSError, TypeError):
            continue
    return most / 1024


def run(command: list[str]) -> dict[str, float]:
    """Seconds, and memory in MB: its own, or its workers'."""
    found, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            found[0] = max(found[0], workers_memory())

    thread = threading.Thread(target=look)
    thread.start()
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "offramp", "predict", *command])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    over.set()
    thread.join()
    if status:
        raise SystemExit(f"offramp predict ended with {status}")
    return {"seconds": seconds, "memory": found[0] or usage.ru_maxrss / 1024, "driver": usage.ru_maxrss / 1024}


def main() -> None:
    """Both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    texts = [" ".join(text.split()[:12]) for text in read_texts(None, 5000)]
    told: dict[str, Any] = {"date": date.today().isoformat(), "cpu": cpu_name(), "rows": args.rows}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", texts)
        write_lines(folder / "rows.txt", texts, args.rows)
        for part in range(10):
            numbers = range(part * args.rows // 10, (part + 1) * args.rows // 10)
            table = pa.table({"id": list(numbers), "text": [texts[number % len(texts)] for number in numbers]})
            pa.parquet.write_table(table, folder / f"{part}.parquet")
        model, here = str(folder / "model"), ["--output", str(folder / "answers.jsonl"), "--threads", "1"]
        told["one process"] = run([model, str(folder / "rows.txt"), *here])
        ray = ["--engine", "ray", "--workers", str(args.workers), "--output", str(folder / "answers")]
        told["ray"] = run([model, str(folder / "*.parquet"), *ray]) | {"workers": args.workers}
        ids = pa.dataset.dataset(folder / "answers").to_table(columns=["id"])["id"]
        assert sorted(ids.to_pylist()) == list(range(args.rows)), "not every id once"
    print(json.dumps(told, indent=1))
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
