"""Write docs/benchmarks.md from the figures in benchmarks/results.

python benchmarks/write_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
README = HERE.parent / "README.md"
MARK, END = "<!-- efficiency: written by benchmarks/write_page.py -->", "<!-- end -->"

INTRODUCTION = """\
# Benchmarks

Written by `benchmarks/write_page.py` from the files in `benchmarks/results`; no figure is typed by hand.
"""


def efficiency(results: dict[str, Any]) -> str:
    """Measured against computed speedup."""
    about = results["about"]
    setting = (
        f"`python benchmarks/exit_efficiency.py`, {about['date']}, {about['cpu']}, {about['threads']} threads, torch "
        f"{about['torch']}, transformers {about['transformers']}. A random encoder of {about['layers']} layers of "
        f"{about['hidden']}, {about['heads']} heads; {about['texts']} sentences of {about['mean_tokens']:.0f} tokens "
        "on average; exit layers drawn uniformly and forced; tokenisation inside the clock; contestants take turns "
        f"on every batch; medians of {about['repeats']} repeats per batch. *computed* is layers over mean exit layer, "
        "*measured* is adaptive over plain; *plain again* is the same plain model a second time, so its distance "
        "from 1 is the noise."
    )
    columns = (
        *("batch", "plain, texts/s", "plain again", "never-exit ÷ plain", "adaptive, texts/s"),
        *("computed", "measured", "measured ÷ computed", "layers alone ÷ computed"),
    )
    lines = ["## How much of the computed speedup is really there", "", setting, ""]
    for title, key in (("Exits on all layers", "rows"), ("Four exits", "rows_few")):
        lines += [f"**{title}**", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for row in results[key]:
            plain = row["plain"]
            lines.append(
                f"| {row['batch']} | {plain:.1f} | {row['plain_again'] / plain:.3f} | {row['never'] / plain:.3f} "
                f"| {row['adaptive']:.1f} | {row['computed_speedup']:.2f} × | {row['measured_speedup']:.2f} × "
                f"| **{row['measured_speedup'] / row['computed_speedup']:.3f}** "
                f"| {row['layers_only'] / plain / row['computed_speedup']:.3f} |"
            )
        lines.append("")
    return "\n".join(lines)


def short(results: dict[str, Any]) -> str:
    """The README's table: what is left of the computed speedup."""
    about = results["about"]
    batches = [str(row["batch"]) for row in results["rows"]]
    shape = f"{about['layers']} layers of {about['hidden']}"
    lines = [
        f"Measured ÷ computed, {shape}, {about['cpu']}, {about['threads']} threads, {about['date']}:",
        "",
        f"| batch | {' | '.join(batches)} |",
        f"|---|{'---|' * len(batches)}",
    ]
    for title, key in (("an exit on every layer", "rows"), ("four exits", "rows_few")):
        shares = [f"{row['measured_speedup'] / row['computed_speedup']:.2f}" for row in results[key]]
        lines.append(f"| {title} | {' | '.join(shares)} |")
    return "\n".join(lines)


def memory(results: dict[str, Any]) -> str:
    """Peak memory by file length."""
    about = results["about"]
    setting = (
        f"`python benchmarks/million_lines.py`, {about['date']}, {about['cpu']}, torch {about['torch']}. `offramp "
        "predict` with a tiny model (two layers of 32), in a process of its own; seconds include its start."
    )
    columns = "| lines | seconds | lines/s | peak memory |"
    lines = ["## Memory on long files", "", setting, "", columns, "|---|---|---|---|"]
    for row in results["rows"]:
        speed = row["lines"] / row["seconds"]
        lines.append(f"| {row['lines']:,} | {row['seconds']:.1f} | {speed:,.0f} | {row['peak_mb']:.0f} MB |")
    return "\n".join([*lines, ""])


def training(results: dict[str, Any]) -> str:
    """Our loop against one by hand."""
    about = results["about"]
    setting = (
        f"`python benchmarks/training_throughput.py`, {about['date']}, {about['cpu']}, {about['threads']} threads, "
        f"torch {about['torch']}, transformers {about['transformers']}. {about['model']}, batches of {about['batch']}, "
        f"{about['updates']} updates per round (the first 5 not counted), {about['rounds']} rounds in turn; of "
        "offramp the loop by hand has only the batches. *ratio* is ours ÷ by hand, the median of the rounds; above 1 "
        "ours is faster."
    )
    columns = "| recipe | ours, rows/s | by hand, rows/s | ratio | of the rounds |"
    lines = ["## Training against a loop written by hand", "", setting, "", columns, "|---|---|---|---|---|"]
    for recipe, row in results["recipes"].items():
        ours, hand = (", ".join(map(str, row[f"{who}_rows_per_second"])) for who in ("ours", "by_hand"))
        lines.append(f"| {recipe} | {ours} | {hand} | **{row['ratio']}** | {', '.join(map(str, row['ratios']))} |")
    return "\n".join([*lines, ""])


NOTES = """\
The last column is what the same rows reach in the same layers without a head, a decision or a gathered answer: the
most that any loop over these layers can reach. Why it differs from 1 was not isolated. The likely reasons: in small
batches a layer's weights have to be read whatever the number of rows, so the last survivors pay almost its full
price; in large ones rows that leave take their padding with them.
"""


def main() -> None:
    """Read the results, write the page."""
    parts = [INTRODUCTION]
    pages = (("exit_efficiency", efficiency), ("million_lines", memory), ("training_throughput", training))
    for name, render in pages:
        file = HERE / "results" / f"{name}.json"
        if file.exists():
            parts.append(render(json.loads(file.read_text("utf-8"))))
        if name == "exit_efficiency":
            parts.append(NOTES)
    PAGE.write_text("\n".join(parts), encoding="utf-8")
    results = json.loads((HERE / "results" / "exit_efficiency.json").read_text("utf-8"))
    before, _, rest = README.read_text("utf-8").partition(MARK)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{MARK}\n{short(results)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
