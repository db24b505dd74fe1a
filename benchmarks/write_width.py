"""Write the tables of docs/how-to/prune.md; `section` is the part of docs/results/quality.md about width.

python benchmarks/write_width.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from saved_results import policy_title
from width_results import RESULTS, RUNS

HERE = Path(__file__).parent
SPEEDS = HERE / "results" / "width_race.json"
PAGE = HERE.parent / "docs" / "how-to" / "prune.md"
MARK, END = "<!-- width: written by benchmarks/write_width.py -->", "<!-- end -->"

SETTING = """\
`python benchmarks/width.py`, {date}, {cpu}, {threads} threads, torch {torch}, transformers {transformers}. Encoders
with random weights, {layers} layers, twelve attention heads. The units that each row keeps are drawn at random and
forced; the gates are computed. Heads are pruned in groups of three, except with blocks of 1 (as published).

Each cell is *measured ÷ counted*: the measured speedup divided by the one that counted operations predict. In
parentheses: the measured speedup over the unmodified Hugging Face encoder, in alternating runs. Below 1, pruning is
slower."""
TRAINED = """\
`benchmarks/width_results.py`, {date}, {cpu}, {threads} threads. One epoch of plain fine-tuning (`joint`: of all exits),
then one epoch of `ebert`. A name contains the target ratio and the block size. *accuracy*: last exit, {rows} dev rows.
*operations left*: counted exactly, gates included. *measured*: speedup over the plain encoder, in alternating runs."""
LENGTHS = {"real": "sentences of different lengths", "full": "rows of 128 tokens"}


def speed_tables() -> list[str]:
    """Return measured ÷ counted by block and batch size, a table per encoder and kind of length."""
    if not SPEEDS.is_file():
        return ["Not measured yet.", ""]
    results = json.loads(SPEEDS.read_text())
    lines = [SETTING.format(**results), ""]
    for size in sorted({row["size"] for row in results["rows"]}, reverse=True):
        for lengths, title in LENGTHS.items():
            rows = [row for row in results["rows"] if row["size"] == size and row["lengths"] == lengths]
            lines += [f"**{results['layers']} layers, hidden size {size}, {title}**", "", *_speed_table(rows), ""]
    return lines


def _speed_table(rows: list[dict[str, Any]]) -> list[str]:
    shares = sorted({row["kept"] for row in rows}, reverse=True)
    batches = sorted({row["batch"] for row in rows})
    columns = [(batch, share) for batch in batches for share in shares]
    head = ["block", *(f"batch {batch}, keeps {share:g}" for batch, share in columns)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    by_setting = {(row["block"], row["batch"], row["kept"]): row for row in rows}
    for block in sorted({row["block"] for row in rows}):
        measured = [by_setting.get((block, *column)) for column in columns]
        cells = ["–" if row is None else f"{row['ratio']:.2f} ({row['measured']:.2f} ×)" for row in measured]
        lines.append(f"| {block} | {' | '.join(cells)} |")
    return lines


def section() -> list[str]:
    """Return the section of docs/results/quality.md."""
    lines = ["## Width: EBERT's gates on GLUE SST-2, all-MiniLM-L6-v2", ""]
    records = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    if not records:
        return [*lines, "Not run yet (`benchmarks/width_results.py`).", ""]
    first = next(iter(records.values()))
    missing = [name for name in RUNS if name not in records]
    lines += [TRAINED.format(**first), ""]
    lines += [f"Not run yet: {', '.join(missing)}.", ""] if missing else []
    lines += ["| model | accuracy | operations left | policy | accuracy with policy | mean layers | measured |"]
    lines += ["|---|---:|---:|---|---:|---:|---:|"]
    for name, record in records.items():
        left = "100 %" if record["width"] is None else f"{100 * record['width']['ratio']:.1f} %"
        score = f"{100 * record['exits'][-1]['scores']['acc']:.1f}"
        for number, point in enumerate(record["live"]):
            start = [name, score, left] if number == 0 else ["", "", ""]
            policy = "none (one exit)" if len(record["exits"]) == 1 else policy_title(point["policy"])
            cells = [policy, f"{100 * point['score']:.1f}", f"{point['mean_layers']:.2f}"]
            lines.append(f"| {' | '.join([*start, *cells])} | {point['measured_speedup']:.2f} × |")
    return [*lines, ""]


def main() -> None:
    """Write the tables into the page."""
    before, mark, rest = PAGE.read_text("utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"{PAGE} has no line {MARK}")
    _, _, after = rest.partition(END)
    table = "\n".join(speed_tables())
    PAGE.write_text(f"{before}{MARK}\n{table}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
