"""What width is worth: the tables of docs/width.md and of docs/results.md, from benchmarks/results.

python benchmarks/write_width.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from width_results import RESULTS, RUNS

HERE = Path(__file__).parent
RACE = HERE / "results" / "width_race.json"
PAGE = HERE.parent / "docs" / "width.md"
MARK, END = "<!-- width: written by benchmarks/write_width.py -->", "<!-- end -->"

SETTING = """\
`python benchmarks/width.py`, {date}, {cpu}, {threads} threads, torch {torch}, transformers {transformers}. A random
encoder of {layers} layers, twelve heads; what each row keeps is drawn and forced, the gates are computed. Heads go by
threes but for blocks of 1, which are as published. The cells are measured ÷
counted, how much of the operations' ratio is there in seconds, and in brackets how many times faster than the library's
own forward pass, in turns: below 1 width is a loss."""
MADE = """\
`benchmarks/width_results.py`, {date}, {cpu}, {threads} threads. One epoch of plain fine-tuning (`joint`: of all exits),
then one epoch of `ebert` on it; a name has the target and the block. Score of the last exit on {rows} dev rows;
*operations left* as counted exactly, gates included; *measured* against the plain encoder in turns."""
AIM = {1: 0.85, 32: 0.80}
TITLES = {"real": "sentences of their own lengths", "full": "rows of 128 tokens"}


def race_table() -> list[str]:
    """Measured ÷ counted by block and batch, a table per encoder and kind of length."""
    if not RACE.is_file():
        return ["Not measured yet.", ""]
    told = json.loads(RACE.read_text())
    lines = [SETTING.format(**told), ""]
    for size in sorted({row["size"] for row in told["rows"]}, reverse=True):
        for kind, title in TITLES.items():
            rows = [row for row in told["rows"] if row["size"] == size and row["lengths"] == kind]
            lines += [f"**{told['layers']} layers of {size}, {title}**", "", *_race(rows), ""]
    return [*lines, *_aimed(told["rows"], told["layers"])]


def _aimed(rows: list[dict[str, Any]], layers: int) -> list[str]:
    """Whether what was aimed at is there: measured ÷ counted of blocks of 128, where 0.6 is kept."""
    lines = ["Aimed at with blocks of 128 and 0.6 kept: 0.85 at batch 1, 0.80 at batch 32."]
    for size in sorted({row["size"] for row in rows}, reverse=True):
        found = {(row["lengths"], row["batch"]): row["ratio"] for row in rows if _is_aimed(row) and row["size"] == size}
        told = [
            f"{TITLES[kind]} at batch {batch} {found[kind, batch]:.2f} ({'reached' if enough else 'not reached'})"
            for kind in TITLES
            for batch, least in AIM.items()
            for enough in [found[kind, batch] >= least]
        ]
        lines.append(f"{layers} × {size}: {', '.join(told)}.")
    return ["  ".join(lines), ""]


def _is_aimed(row: dict[str, Any]) -> bool:
    return bool(row["block"] == 128 and row["kept"] == 0.6 and row["batch"] in AIM)


def _race(rows: list[dict[str, Any]]) -> list[str]:
    shares = sorted({row["kept"] for row in rows}, reverse=True)
    batches = sorted({row["batch"] for row in rows})
    columns = [(batch, share) for batch in batches for share in shares]
    head = ["block", *(f"batch {batch}, keeps {share:g}" for batch, share in columns)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    found = {(row["block"], row["batch"], row["kept"]): row for row in rows}
    for block in sorted({row["block"] for row in rows}):
        cells = [found.get((block, *column)) for column in columns]
        shown = ["–" if one is None else f"{one['ratio']:.2f} ({one['measured']:.2f} ×)" for one in cells]
        lines.append(f"| {block} | {' | '.join(shown)} |")
    return lines


def section() -> list[str]:
    """The part of docs/results.md."""
    lines = ["## Width: EBERT's gates on GLUE SST-2, all-MiniLM-L6-v2", ""]
    told = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    if not told:
        return [*lines, "Not run yet (`benchmarks/width_results.py`).", ""]
    first = next(iter(told.values()))
    missing = [name for name in RUNS if name not in told]
    lines += [MADE.format(**first), ""]
    lines += [f"Not run yet: {', '.join(missing)}.", ""] if missing else []
    lines += ["| model | acc | operations left | policy | acc then | mean layers | measured |"]
    lines += ["|---|---:|---:|---|---:|---:|---:|"]
    for name, one in told.items():
        left = "100 %" if one["width"] is None else f"{one['width']['ratio']:.1%}"
        score = f"{100 * one['exits'][-1]['scores']['acc']:.1f}"
        for place, point in enumerate(one["live"]):
            start = [name, score, left] if place == 0 else ["", "", ""]
            cells = [f"`{point['policy']}`", f"{100 * point['score']:.1f}", f"{point['mean_layers']:.2f}"]
            lines.append(f"| {' | '.join([*start, *cells])} | {point['measured_speedup']:.2f} × |")
    return [*lines, ""]


def main() -> None:
    """Write the page's part."""
    before, _, rest = PAGE.read_text("utf-8").partition(MARK)
    _, _, after = rest.partition(END)
    table = "\n".join(race_table())
    PAGE.write_text(f"{before}{MARK}\n{table}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
