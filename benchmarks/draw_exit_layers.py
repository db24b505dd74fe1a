"""Draw where texts exit: a stacked bar per model."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

__all__ = ["draw_exit_layers"]


def draw_exit_layers(file: Path, names: list[str], shares: NDArray[np.float64], label: str) -> None:
    """Draw the share of texts at every layer, (models, layers), in percent."""
    depth = shares.shape[1]
    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.34 * len(names)), layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0.95, 0.1, depth))
    starts = np.zeros(len(names))
    for layer in range(1, depth + 1):
        column = shares[:, layer - 1]
        bars = axes.barh(range(len(names)), column, left=starts, color=colours[layer - 1], label=str(layer))
        labels = [f"{share:.0f}" if share >= 4 else "" for share in column]
        axes.bar_label(bars, labels, label_type="center", fontsize=7, color="black" if layer <= depth / 2 else "white")
        starts += column
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.invert_yaxis()
    axes.set(xlim=(0, 100))
    axes.set_xlabel(label, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(title="exit layer", ncols=2 if depth > 6 else 1, fontsize=7, title_fontsize=8, frameon=False)
    legend.set_loc("upper left")
    legend.set_bbox_to_anchor((1, 1))
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
