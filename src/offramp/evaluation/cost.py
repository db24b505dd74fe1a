"""The cost of a set of rows, counted in layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["LayerCost", "layer_cost"]


@dataclass(frozen=True)
class LayerCost:
    """Layers run by the rows of a model with `depth` layers; heads and embeddings are not counted."""

    depth: int
    rows_per_layer: tuple[int, ...]  # number of rows that exited at layer 0 (before any layer), 1, 2, …

    @property
    def mean_layers(self) -> float:
        """The mean exit layer."""
        rows = sum(self.rows_per_layer)
        return sum(layer * count for layer, count in enumerate(self.rows_per_layer)) / rows

    @property
    def layers_run(self) -> float:
        """The fraction of layers that were run; DeeBERT and BERxiT print it as "Expected saving"."""
        return self.mean_layers / self.depth

    @property
    def saved(self) -> float:
        """The fraction of layers that were not run; PABEE prints it as "Speed Up"."""
        return 1 - self.layers_run

    @property
    def speedup(self) -> float:
        """Depth over mean layers: an upper bound on the measured speedup; infinite if no layer ran."""
        return self.depth / self.mean_layers if self.mean_layers else math.inf


def layer_cost(exit_layers: Tensor | NDArray[np.int64], depth: int) -> LayerCost:
    """Count where rows exited; `exit_layers` (rows,) from 0."""
    layers = exit_layers.numpy(force=True) if isinstance(exit_layers, Tensor) else exit_layers
    counts = np.bincount(layers.astype(np.int64), minlength=depth + 1)
    return LayerCost(depth, tuple(int(count) for count in counts))
