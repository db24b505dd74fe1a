"""What a call of an exported graph costs in ONNX Runtime and in OpenVINO, with equal and with changing shapes.

    python benchmarks/call_overhead.py NAME FAST

FAST has an ONNX export; both runtimes read its segments. CPU time of a call, with one thread, for one row and for 32
rows: batches of the same 25 tokens, and batches whose length changes from call to call as it does between texts. The
record goes to benchmarks/results/runtimes, from which write_performance.py writes a section of docs/results/speed.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import offramp
from offramp.core.machine import cpu_name
from offramp.runtimes import RUNTIMES

RESULTS = Path(__file__).parent / "results" / "runtimes"
LENGTH, SHORTEST, LONGEST = 25, 10, 40
CALLS = 200


def feed(inputs: frozenset[str], rows: int, length: int, hidden_size: int, generator: Any) -> dict[str, Any]:
    """Return random inputs of a segment."""
    values = {
        "input_ids": generator.integers(1000, 20000, (rows, length)),
        "token_type_ids": np.zeros((rows, length), np.int64),
        "hidden": generator.standard_normal((rows, length, hidden_size)).astype(np.float32),
        "mask": np.ones((rows, length), bool),
    }
    return {name: values[name] for name in inputs}


def milliseconds(graph: Any, batches: list[dict[str, Any]]) -> float:
    """Return the median CPU time of a call, after a pass over the same batches."""
    for batch in batches:
        graph(batch)
    seconds = []
    for batch in batches:
        start = time.process_time()
        graph(batch)
        seconds.append(time.process_time() - start)
    return 1000 * statistics.median(seconds)


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("fast")
    args = parser.parse_args()
    runner = offramp.load(args.fast, "onnx", threads=1)
    hidden_size, rows = runner.config.hidden_size, []
    first = 0
    for point in runner.stepper.exits[:2]:
        file = Path(args.fast) / "onnx" / f"exit-{point.layer}.onnx"
        for backend in ("onnx", "openvino"):
            graph = RUNTIMES[backend].open_graph(file, 1)
            for size in (1, 32):
                generator = np.random.default_rng(0)
                lengths = generator.integers(SHORTEST, LONGEST, CALLS).tolist()
                same = [feed(graph.inputs, size, LENGTH, hidden_size, generator) for _ in range(CALLS)]
                changing = [feed(graph.inputs, size, length, hidden_size, generator) for length in lengths]
                times = {"same": milliseconds(graph, same), "changing": milliseconds(graph, changing)}
                rows.append({"layers": [first, point.layer], "backend": backend, "rows": size, **times})
                print(rows[-1], flush=True)
        first = point.layer
    about = {"name": args.name, "date": date.today().isoformat(), "cpu": cpu_name(), "threads": 1}
    record = about | {"precision": runner.dtype, "rows": rows}
    (RESULTS / f"calls-{args.name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
