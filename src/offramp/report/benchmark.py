"""Present benchmark results as a table and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offramp.report.figures import COLORS

__all__ = ["draw", "table"]

COLUMNS = ("spread", "p50", "p95", "p99 ms", "same", "score", "layers", "MB", "÷ plain", "÷ best baseline")


def table(results: dict[str, Any]) -> str:
    """Return one block per batch size; entries with too many changed predictions are marked with an asterisk."""
    blocks = []
    for batch in dict.fromkeys(row["batch"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["batch"] == batch]
        cells = [(f"batch {batch}", f"{results.get('units', 'texts')}/s", *COLUMNS), *(_cells(row) for row in rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
        lines = [
            "  ".join(
                [
                    line[0].ljust(widths[0]),
                    *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
                ]
            )
            for line in cells
        ]
        blocks.append("\n".join(lines))
    if any(not row["counts"] for row in results["rows"]):
        blocks.append("* agrees with the full model on less than 98 % of predictions; not used as a baseline.")
    threads = f"{results['threads']} thread{'s' if results['threads'] > 1 else ''}"
    blocks.append(f"{results['cpu']}, {threads}, torch {results['torch']}, {results['date'][:10]}.")
    return "\n\n".join(blocks)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    slowest, fastest = row["spread"]
    return (
        row["name"] + ("" if row["counts"] else " *"),
        f"{row['throughput']:.1f}",
        f"{slowest:.0f}–{fastest:.0f}",
        number(row["p50_ms"], ".2f"),
        number(row["p95_ms"], ".2f"),
        number(row["p99_ms"], ".2f"),
        f"{row['agreement']:.1%}",
        number(None if row["score"] is None else 100 * row["score"], ".1f"),
        f"{row['mean_layers']:.2f}",
        number(row["memory_mb"], ".0f"),
        number(row["to_plain"], ".2f"),
        number(row["to_best_peer"], ".2f"),
    )


def draw(results: dict[str, Any], file: Path) -> None:
    """Plot agreement with the full model against throughput, one point per entry."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    batches = list(dict.fromkeys(row["batch"] for row in results["rows"]))
    figure, axes = plt.subplots(1, len(batches), figsize=(5.2 * len(batches), 4.6), squeeze=False, sharey=True)
    for axis, batch in zip(axes[0], batches, strict=True):
        for row in (row for row in results["rows"] if row["batch"] == batch):
            mark, colour = ("o", COLORS[0]) if row["adaptive"] else ("s", "#777777")
            axis.plot(row["throughput"], 100 * row["agreement"], mark, color=colour)
            position = (row["throughput"], 100 * row["agreement"])
            axis.annotate(row["name"], position, xytext=(4, 3), textcoords="offset points", fontsize=6)
        axis.set(xscale="log", xlabel=f"{results.get('units', 'texts')} per second", title=f"batch {batch}")
    axes[0][0].set_ylabel("same prediction as the full float32 model (%)")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(figure)
