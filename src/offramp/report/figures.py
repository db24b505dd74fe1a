"""Curves and histograms as PNG and SVG."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offramp.extras import require
from offramp.policies import parse

__all__ = ["COLORS", "curves", "histogram"]

# Okabe and Ito's colour-blind-safe palette
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#444444")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "offramp",  # makes the files reproducible
}

Line = tuple[str, Sequence[Mapping[str, Any]]]  # a name and its points


def _pyplot() -> Any:
    require("train", "Drawing")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    matplotlib.rcParams.update(STYLE)
    return matplotlib.pyplot


def curves(
    folder: Path,
    lines: Sequence[Line],
    metric: str | None,
    *,
    title: str,
    exits: Sequence[Line] = (),
    oracle: Line | None = None,
    chosen: Mapping[str, Any] | None = None,
    cost: str = "mean_layers",
) -> None:
    """Plot score (without labels: agreement) against `cost` (mean layers or flops); `exits` are drawn as markers."""
    plt = _pyplot()
    value = "agreement" if metric is None else "score"
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    for (name, points), colour in zip(lines, _colours(len(lines)), strict=True):
        ordered = sorted(points, key=lambda point: point[cost])
        axes.plot(*_columns(ordered, value, cost), color=colour, linewidth=1.6, label=name)
    for (name, points), colour in zip(exits, _colours(len(exits)), strict=True):
        style = {"color": colour if len(exits) > 1 else "#777777", "markersize": 4, "linestyle": "none"}
        axes.plot(*_columns(points, value, cost), marker="s", label=name, **style)
    if oracle is not None and metric is not None:
        best, deepest = oracle[1][-1], {"mean_layers": axes.get_xlim()[1]}  # flat up to the right edge
        axes.plot(*_columns([*oracle[1], {**best, **deepest}], value), color="#999999", linestyle=":", label=oracle[0])
    if chosen is not None:
        axes.plot([chosen["mean_layers"]], [100 * chosen[value]], "o", color="black", markersize=8, fillstyle="none")
        axes.annotate(
            parse(chosen["policy"]).describe(),
            (chosen["mean_layers"], 100 * chosen[value]),
            (8, -12),
            textcoords="offset points",
        )
    axes.set_xlabel("mean layers run" if cost == "mean_layers" else "operations per text (MFLOPs)")
    axes.set_ylabel(f"{metric} (%)" if metric else "same prediction as the full model (%)")
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(fontsize=8)
    _save(plt, figure, folder, "curve")


def histogram(folder: Path, layers: Sequence[int], counts: Sequence[int], policy: str) -> None:
    """Plot how many rows exit at each layer."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 2.8))
    total = sum(counts)
    bars = axes.bar(range(len(layers)), counts, color=COLORS[0])
    axes.bar_label(bars, [f"{count / total:.0%}" for count in counts], fontsize=8)
    axes.set_xticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_xlabel("exit layer")
    axes.set_ylabel("rows")
    axes.set_title(f"Where rows exit: {parse(policy).describe()}", loc="left", fontsize=10)
    axes.grid(visible=False, axis="x")
    _save(plt, figure, folder, "exits")


def _colours(count: int) -> list[str]:
    return [COLORS[i % len(COLORS)] for i in range(count)]


def _columns(
    points: Sequence[Mapping[str, Any]], value: str, cost: str = "mean_layers"
) -> tuple[list[float], list[float]]:
    scale = 1.0 if cost == "mean_layers" else 1e-6
    return [scale * point[cost] for point in points], [100 * point[value] for point in points]


def _save(plt: Any, figure: Any, folder: Path, name: str) -> None:
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # names in other scripts are drawn as boxes
        ConstrainedLayoutEngine().execute(figure)  # once, instead of for every file
        figure.savefig(folder / f"{name}.png", dpi=160)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
