"""What a set of rows has spent, counted in layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["LayerCost", "layer_cost"]


@dataclass(frozen=True)
class LayerCost:
    """Layers run by rows of a model of `depth` layers; heads and embeddings are not in it."""

    depth: int
    rows_per_layer: tuple[int, ...]  # how many rows exited at layer 0, 1, 2, …; 0: before any layer

    @property
    def mean_layers(self) -> float:
        """The mean exit layer."""
        rows = sum(self.rows_per_layer)
        return sum(layer * count for layer, count in enumerate(self.rows_per_layer)) / rows

    @property
    def layers_run(self) -> float:
        """The share of layers that were run; DeeBERT and BERxiT print it as "Expected saving"."""
        return self.mean_layers / self.depth

    @property
    def saved(self) -> float:
        """The share of layers that were not run; PABEE prints it as "Speed Up"."""
        return 1 - self.layers_run

    @property
    def speedup(self) -> float:
        """Depth over mean layers: the limit of what can be measured; infinite where no layer ran."""
        return self.depth / self.mean_layers if self.mean_layers else math.inf


def layer_cost(exit_layers: Tensor | NDArray[np.int64], depth: int) -> LayerCost:
    """Count where rows exited; `exit_layers` (rows,) from 0."""
    layers = exit_layers.numpy(force=True) if isinstance(exit_layers, Tensor) else exit_layers
    counts = np.bincount(layers.astype(np.int64), minlength=depth + 1)
    return LayerCost(depth, tuple(int(count) for count in counts))
