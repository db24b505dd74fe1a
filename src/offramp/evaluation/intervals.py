"""How far a figure from so many rows can be trusted: bootstrap intervals, and exact ones for shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

__all__ = ["bootstrap", "bootstrap_mean", "exact_share"]

RESAMPLES, LEVEL = 1000, 0.95

Interval = tuple[float, float]


def bootstrap_mean(values: NDArray[Any], seed: int = 0) -> Interval:
    """Of the mean of a value per row: percentiles over resampled rows, drawn as counts of the few values there are."""
    distinct, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    rows = len(values)
    drawn = np.random.default_rng(seed).multinomial(rows, counts / rows, size=RESAMPLES)
    return _percentiles(drawn @ distinct / rows)


def bootstrap(compute: Callable[..., float], *columns: NDArray[Any], seed: int = 0) -> Interval:
    """Of a figure computed from columns of the same rows."""
    generator = np.random.default_rng(seed)
    rows = len(columns[0])
    found = []
    for _ in range(RESAMPLES // 4):  # such figures cost more than a mean
        some = generator.integers(rows, size=rows)
        found.append(compute(*(column[some] for column in columns)))
    return _percentiles(found)


def exact_share(count: int, rows: int) -> Interval:
    """Of a share, by Clopper and Pearson: right at 0 and 100 % too, where resampling says nothing."""
    found = stats.binomtest(count, rows).proportion_ci(LEVEL)
    return float(found.low), float(found.high)


def _percentiles(found: Sequence[float] | NDArray[np.float64]) -> Interval:
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
