"""Write docs/results/exit-overhead.md and its figure from the files in benchmarks/results.

python benchmarks/write_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from offramp.report.figures import COLORS

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results" / "exit-overhead.md"
FIGURE = HERE.parent / "docs" / "figures" / "exit-overhead.svg"
EXITS = {"rows": "Exits on all layers", "rows_few": "Four exits"}

TITLE = "# Exit overhead"
SOURCE = "`benchmarks/write_page.py` writes this page from the files in `benchmarks/results`."
LIMIT = """\
The last column is the same measurement for the layers alone: the same rows run through the same layers, but without
heads, decisions and collected predictions. It is the upper bound for any loop over these layers. Why it differs from 1
was not isolated. Likely reasons: in small batches, reading a layer's weights costs the same for few rows as for many,
so the last remaining rows pay almost the full price. In large batches, rows that exit take their padding with them.
"""


def read(name: str) -> dict[str, Any]:
    """Return a saved result."""
    results: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text("utf-8"))
    return results


def ratio(row: dict[str, Any]) -> float:
    """Return measured ÷ computed speedup."""
    return float(row["measured_speedup"] / row["computed_speedup"])


def summary(exits: dict[str, Any], lines: dict[str, Any], training: dict[str, Any]) -> str:
    """Return the page's first three sentences."""
    ratios = [[100 * ratio(row) for row in exits[key]] for key in EXITS]
    spans = [f"{min(values):.0f} to {max(values):.0f} %" for values in ratios]
    first, last = lines["rows"][0], lines["rows"][-1]
    trained = ", ".join(f"{row['ratio']:.2f} (`{recipe}`)" for recipe, row in training["recipes"].items())
    return (
        f"- In PyTorch on a CPU, early exits reach {spans[0]} of the computed speedup with an exit on every layer and "
        f"{spans[1]} with four exits, depending on the batch size.\n"
        f"- `offramp predict` needs {first['peak_mb']:.0f} MB for {first['lines']:,} lines and "
        f"{last['peak_mb']:.0f} MB for {last['lines']:,} lines.\n"
        f"- Training throughput relative to a handwritten loop: {trained}.\n"
    )


def efficiency(results: dict[str, Any]) -> str:
    """Return the section about measured and computed speedup."""
    about = results["about"]
    setting = (
        f"`python benchmarks/exit_efficiency.py`, {about['date']}, {about['cpu']}, {about['threads']} threads, torch "
        f"{about['torch']}, transformers {about['transformers']}. Encoder with random weights, {about['layers']} "
        f"layers, hidden size {about['hidden']}, {about['heads']} heads. {about['texts']} sentences, "
        f"{about['mean_tokens']:.0f} tokens on average. Exit layers are drawn uniformly and forced, so the results do "
        f"not depend on a task. Times include tokenization. All variants take turns on every batch; medians of "
        f"{about['repeats']} repeats."
    )
    legend = (
        "- *computed*: number of layers ÷ mean exit layer.\n"
        "- *measured*: throughput with early exits ÷ throughput of the plain model.\n"
        "- *plain again ÷ plain*: the plain model measured twice. The distance from 1 is measurement noise.\n"
        "- *`never` ÷ plain*: the adaptive model when no text exits early.\n"
    )
    columns = (
        *("batch", "plain, texts/s", "plain again ÷ plain", "`never` ÷ plain", "early exits, texts/s"),
        *("computed", "measured", "measured ÷ computed", "layers alone ÷ computed"),
    )
    lines = ["## Measured and computed speedup", "", setting, "", legend]
    lines += ["![Measured divided by computed speedup, by batch size](../figures/exit-overhead.svg)", ""]
    for key, title in EXITS.items():
        lines += [f"**{title}**", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for row in results[key]:
            plain = row["plain"]
            lines.append(
                f"| {row['batch']} | {plain:.1f} | {row['plain_again'] / plain:.3f} | {row['never'] / plain:.3f} "
                f"| {row['adaptive']:.1f} | {row['computed_speedup']:.2f} × | {row['measured_speedup']:.2f} × "
                f"| **{ratio(row):.3f}** | {row['layers_only'] / plain / row['computed_speedup']:.3f} |"
            )
        lines.append("")
    return "\n".join([*lines, LIMIT])


def draw(results: dict[str, Any]) -> None:
    """Draw measured ÷ computed speedup by batch size, a bar per set of exits."""
    plt.rcParams["svg.hashsalt"] = "offramp"
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    batches = [str(row["batch"]) for row in results["rows"]]
    for number, (key, title) in enumerate(EXITS.items()):
        centres = [index + 0.38 * (number - 0.5) for index in range(len(batches))]
        bars = axes.bar(centres, [ratio(row) for row in results[key]], 0.36, color=COLORS[number], label=title)
        axes.bar_label(bars, fmt="%.2f", fontsize=8, label_type="center", color="white")
    axes.axhline(1, color="#777777", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(batches)), batches)
    axes.set(xlabel="batch size", ylabel="measured ÷ computed speedup", ylim=(0, 1.35))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", ncols=2)
    figure.savefig(FIGURE, metadata={"Date": None})
    plt.close(figure)


def memory(results: dict[str, Any]) -> str:
    """Return the section about peak memory by file length."""
    about = results["about"]
    setting = (
        f"`python benchmarks/million_lines.py`, {about['date']}, {about['cpu']}, torch {about['torch']}. `offramp "
        "predict` with a tiny model (two layers, hidden size 32) in a separate process. Times include its start."
    )
    columns = "| lines | seconds | lines/s | peak memory |"
    lines = ["## Memory on long files", "", setting, "", columns, "|---|---|---|---|"]
    for row in results["rows"]:
        speed = row["lines"] / row["seconds"]
        lines.append(f"| {row['lines']:,} | {row['seconds']:.1f} | {speed:,.0f} | {row['peak_mb']:.0f} MB |")
    return "\n".join([*lines, ""])


def training(results: dict[str, Any]) -> str:
    """Return the section about training throughput."""
    about = results["about"]
    setting = (
        f"`python benchmarks/training_throughput.py`, {about['date']}, {about['cpu']}, {about['threads']} threads, "
        f"torch {about['torch']}, transformers {about['transformers']}. {about['model']}, batch size {about['batch']}, "
        f"{about['updates']} updates per round (the first 5 not counted), {about['rounds']} alternating rounds. The "
        "handwritten loop uses only offramp's batches. *ratio* is offramp ÷ handwritten, the median of the rounds; "
        "above 1, offramp is faster."
    )
    columns = "| recipe | offramp, rows/s | handwritten, rows/s | ratio | ratio per round |"
    lines = ["## Training throughput", "", setting, "", columns, "|---|---|---|---|---|"]
    for recipe, row in results["recipes"].items():
        ours, by_hand = (", ".join(map(str, row[f"{loop}_rows_per_second"])) for loop in ("ours", "by_hand"))
        lines.append(f"| {recipe} | {ours} | {by_hand} | **{row['ratio']}** | {', '.join(map(str, row['ratios']))} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Read the results, draw the figure, write the page."""
    plt.switch_backend("Agg")
    exits, lines, throughput = map(read, ("exit_efficiency", "million_lines", "training_throughput"))
    draw(exits)
    parts = [f"{TITLE}\n", summary(exits, lines, throughput), f"{SOURCE}\n"]
    parts += [efficiency(exits), memory(lines), training(throughput)]
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
