"""Sections of docs/results/speed.md about costs: calls of a graph, processes and threads, and adapting a model.

`write_performance.py` writes the page.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

__all__ = ["adapting", "calls", "processes"]

RESULTS = Path(__file__).parent / "results"
BACKENDS = {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}


def _records(folder: str, pattern: str = "*.json") -> list[dict[str, Any]]:
    return [json.loads(file.read_text("utf-8")) for file in sorted((RESULTS / folder).glob(pattern))]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def calls() -> list[str]:
    """Return what a call of a graph costs."""
    lines = list[str]()
    for record in _records("runtimes", "calls-*.json"):
        head = ["graph, rows", *(f"{name}, {kind}" for name in BACKENDS.values() for kind in ("same", "changing"))]
        rows = []
        for key, group in itertools.groupby(
            sorted(record["rows"], key=lambda row: (row["layers"], row["rows"])),
            lambda row: (tuple(row["layers"]), row["rows"]),
        ):
            (first, last), size = key
            by_backend = {row["backend"]: row for row in group}
            part = "embeddings and exit 0" if last == 0 else f"layers {first + 1}–{last} and exit {last}"
            cells = [f"{part}; {size} row{'s' if size > 1 else ''}"]
            for backend in BACKENDS:
                cells += [f"{by_backend[backend][kind]:.2f}" for kind in ("same", "changing")]
            rows.append(cells)
        lines += [
            "## Calls with changing shapes",
            "",
            (
                f"`benchmarks/call_overhead.py`, {record['date']}, {record['cpu']}, 1 thread. {record['name']} in "
                f"{record['precision']}, CPU milliseconds of a call: batches of 25 tokens (*same*), and batches of 10 "
                "to 39 tokens (*changing*). With early exits, the number of rows and their length change at every "
                "exit. OpenVINO prepares a graph again for a new shape, so a call for a single row takes several times "
                "as long as in ONNX Runtime, and an exit on layer 0 saves less."
            ),
            "",
            *_table(head, rows),
        ]
    return lines


def processes() -> list[str]:
    """Return the throughput of two threads and of two processes."""
    records = _records("processes")
    if not records:
        return []
    first = records[0]
    rows = []
    for record in records:
        for policy in dict.fromkeys(row["policy"] for row in record["results"]):
            speed = {row["processes"]: row["texts_per_second"] for row in record["results"] if row["policy"] == policy}
            name = "full depth" if policy == "never" else policy
            cells = [f"{record['name']} ({record['encoder']}), {name}", f"{speed[1]:.0f}", f"{speed[2]:.0f}"]
            rows.append([*cells, f"{speed[2] / speed[1]:.2f}"])
    return [
        "## Two threads or two processes",
        "",
        (
            f"`benchmarks/processes.py`, {first['date']}, {first['cpu']}, two cores. Texts per second of one process "
            "with two threads, and of two processes with one thread each, in ONNX Runtime and the default batches. Two "
            "processes hold the model twice."
        ),
        "",
        *_table(["", "one process, two threads", "two processes, one thread", "ratio"], rows),
    ]


def adapting() -> list[str]:
    """Return the time of `adapt`, and its forecast beside the measured time."""
    records = _records("adapting")
    if not records:
        return []
    first, rows = records[0], []
    for record in records:
        steps = [*record["steps"], record["seconds"]]
        durations = " / ".join(f"{end - start:.0f}" for start, end in itertools.pairwise(steps))
        cells = [f"{record['describe']} ({record['encoder']})", f"{record['texts']:,}"]
        cells += [f"{record['mean_tokens']:.0f} / {record['median_tokens']:.0f} / {record['longest']}"]
        cells += [f"{record['seconds'] / 60:.1f}", durations, ", ".join(map(str, record["exits"]))]
        cells += [f"{1000 * record['forecast']:.2f}", f"{1000 * record['measured']:.2f}"]
        rows.append([*cells, f"{record['forecast'] / record['measured']:.2f}"])
    head = ["", "texts", "tokens: mean / median / longest", "minutes", "seconds of steps 1–5", "exits"]
    head += ["forecast, ms per text", "measured", "ratio"]
    return [
        "## What adapting takes",
        "",
        (
            f"`benchmarks/adapting.py`, {first['date']}, {first['cpu']}, {first['cores']} cores, ONNX Runtime. "
            "*forecast*: the time per text that the search of exits expects of the selected exits; *measured*: the "
            "adapted model on the test texts, both in batches of 32."
        ),
        "",
        *_table(head, rows),
    ]
