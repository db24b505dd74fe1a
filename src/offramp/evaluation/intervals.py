"""Confidence intervals: bootstrap, and exact ones for proportions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

__all__ = ["bootstrap", "bootstrap_mean", "exact_proportion"]

RESAMPLES, CONFIDENCE = 1000, 0.95

Interval = tuple[float, float]


def bootstrap_mean(values: NDArray[Any], seed: int = 0) -> Interval:
    """Return the bootstrap interval of a mean; resamples are drawn as counts of the distinct values."""
    distinct, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    rows = len(values)
    drawn = np.random.default_rng(seed).multinomial(rows, counts / rows, size=RESAMPLES)
    return _percentiles(drawn @ distinct / rows)


def bootstrap(compute: Callable[..., float], *columns: NDArray[Any], seed: int = 0) -> Interval:
    """Return the bootstrap interval of a statistic that is computed from columns of the same rows."""
    generator = np.random.default_rng(seed)
    rows = len(columns[0])
    values = []
    for _ in range(RESAMPLES // 4):  # slower than a mean
        resample = generator.integers(rows, size=rows)
        values.append(compute(*(column[resample] for column in columns)))
    return _percentiles(values)


def exact_proportion(count: int, rows: int) -> Interval:
    """Return the Clopper-Pearson interval of a proportion, which is valid at 0 and 100 % too."""
    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(count, rows - count + 1, tail)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, rows - count, 1 - tail)) if count < rows else 1.0
    return low, high


def _percentiles(values: Sequence[float] | NDArray[np.float64]) -> Interval:
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
