"""p-values for the null hypothesis "the risk is above α", from one loss per row.

A loss is at most 1, and the risk is the mean loss. Every test is valid for any number of rows: P(p ≤ δ) ≤ δ if the
risk is above α.

| test                | losses          | method                                                       |
|---------------------|-----------------|--------------------------------------------------------------|
| `binomial`          | 0 or 1          | exact tail probability of the number of errors               |
| `betting`           | at most 1       | betting martingale (Waudby-Smith and Ramdas); losses may be  |
|                     |                 | negative, and the order of rows must be fixed beforehand     |
| `hoeffding-bentkus` | between 0 and 1 | the smaller of two concentration bounds, in any row order    |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from offramp.errors import BadValue

__all__ = ["BOUNDS", "MAX_ROWS", "betting", "binomial", "hoeffding_bentkus", "rows_needed"]

Losses = NDArray[Any]
MAX_ROWS = 10_000_000


def binomial(losses: Losses, risk: float, level: float) -> float:
    """Return the probability of this few errors if the risk were α."""
    values = np.asarray(losses)
    if not ((values == 0) | (values == 1)).all():
        raise BadValue("The exact binomial test needs losses of 0 and 1.")
    return float(bdtr(int(values.sum()), len(values), risk))


def betting(losses: Losses, risk: float, level: float) -> float:
    """Return 1 / (maximum capital) of a bettor who bets on losses below α, row by row, knowing only earlier rows.

    The bets grow as the estimated variance shrinks; `level` (δ) sets their size only.
    """
    values = np.asarray(losses, dtype=np.float64)
    rows = len(values)
    if rows == 0:
        return 1.0
    count = np.arange(1, rows + 1)
    mean = (0.5 + np.cumsum(values)) / (count + 1)
    variance = (0.25 + np.cumsum((values - mean) ** 2)) / (count + 1)
    variance_before = np.concatenate([[0.25], variance[:-1]])
    bets = np.minimum(1.0, np.sqrt(2 * math.log(1 / level) / (rows * variance_before)))
    log_capital = np.cumsum(np.log1p(-bets * (values - risk)))
    return float(min(1.0, math.exp(-log_capital.max())))


def hoeffding_bentkus(losses: Losses, risk: float, level: float) -> float:
    """Return the smaller of the Hoeffding and Bentkus bounds."""
    from scipy import stats  # slow to import

    values = np.asarray(losses, dtype=np.float64)
    if values.min(initial=0.0) < 0 or values.max(initial=0.0) > 1:
        raise BadValue("The Hoeffding-Bentkus test needs losses between 0 and 1.")
    rows, total = len(values), float(values.sum())
    mean = min(total / rows, risk)
    hoeffding = math.exp(-rows * (_divergence(mean, risk)))
    errors = math.ceil(total - 1e-9)  # floating-point sums of integers may be slightly too large
    bentkus = math.e * float(stats.binom.cdf(errors, rows, risk))
    return min(1.0, hoeffding, bentkus)


def _divergence(a: float, b: float) -> float:
    """Return the KL divergence a ln(a/b) + (1 − a) ln((1 − a)/(1 − b)), with 0 ln 0 = 0."""
    first = a * math.log(a / b) if a > 0 else 0.0
    return first + ((1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0)


Bound = Callable[[Losses, float, float], float]
BOUNDS: dict[str, Bound] = {"binomial": binomial, "betting": betting, "hoeffding-bentkus": hoeffding_bentkus}


def rows_needed(p_value: Callable[[Losses], float], level: float) -> int | None:
    """Return the minimum number of rows that pass a test without a single error; None: more than `MAX_ROWS`."""
    low, high = 0, 1
    while p_value(np.zeros(high)) > level:
        low, high = high, high * 2
        if high > MAX_ROWS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if p_value(np.zeros(middle)) <= level else (middle, high)
    return high
