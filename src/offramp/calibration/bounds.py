"""p-values for "the risk is above α", from a loss per row; small ones speak against it.

A loss is at most 1, its mean is the risk. Each test is valid for any number of rows: P(p ≤ δ) ≤ δ wherever the risk
really is above α.

| test                | losses          | uses                                                        |
|---------------------|-----------------|-------------------------------------------------------------|
| `binomial`          | 0 or 1          | the exact tail of the number of errors                      |
| `betting`           | at most 1       | a gambler's capital (Waudby-Smith and Ramdas); losses may be |
|                     |                 | negative, and the order of rows is fixed beforehand         |
| `hoeffding-bentkus` | between 0 and 1 | the better of two inequalities; needs no order              |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from offramp.errors import BadValue

__all__ = ["BOUNDS", "MOST_ROWS", "betting", "binomial", "hoeffding_bentkus", "rows_needed"]

Losses = NDArray[Any]
MOST_ROWS = 10_000_000


def binomial(losses: Losses, risk: float, level: float) -> float:
    """P(so few errors) if the risk were α."""
    values = np.asarray(losses)
    if not np.isin(values, (0, 1)).all():
        raise BadValue("The exact binomial test is for losses of 0 and 1.")
    return float(stats.binom.cdf(int(values.sum()), len(values), risk))


def betting(losses: Losses, risk: float, level: float) -> float:
    """One over the largest capital of a gambler who bets on losses below α, row by row, knowing only the past.

    The bets grow with the certainty gained so far; `level` (δ) only sets how bold they are.
    """
    values = np.asarray(losses, dtype=np.float64)
    rows = len(values)
    if rows == 0:
        return 1.0
    count = np.arange(1, rows + 1)
    mean = (0.5 + np.cumsum(values)) / (count + 1)
    spread = (0.25 + np.cumsum((values - mean) ** 2)) / (count + 1)
    before = np.concatenate([[0.25], spread[:-1]])
    bets = np.minimum(1.0, np.sqrt(2 * math.log(1 / level) / (rows * before)))
    capital = np.cumsum(np.log1p(-bets * (values - risk)))
    return float(min(1.0, math.exp(-capital.max())))


def hoeffding_bentkus(losses: Losses, risk: float, level: float) -> float:
    """The smaller of Hoeffding's and Bentkus's bounds."""
    values = np.asarray(losses, dtype=np.float64)
    if values.min(initial=0.0) < 0 or values.max(initial=0.0) > 1:
        raise BadValue("The Hoeffding-Bentkus test is for losses between 0 and 1.")
    rows, total = len(values), float(values.sum())
    mean = min(total / rows, risk)
    hoeffding = math.exp(-rows * (_divergence(mean, risk)))
    errors = math.ceil(total - 1e-9)  # a sum of whole numbers may come out a hair too large
    bentkus = math.e * float(stats.binom.cdf(errors, rows, risk))
    return min(1.0, hoeffding, bentkus)


def _divergence(a: float, b: float) -> float:
    """A ln(a/b) + (1 − a) ln((1 − a)/(1 − b)), with 0 ln 0 = 0."""
    first = a * math.log(a / b) if a > 0 else 0.0
    return first + ((1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0)


Bound = Callable[[Losses, float, float], float]
BOUNDS: dict[str, Bound] = {"binomial": binomial, "betting": betting, "hoeffding-bentkus": hoeffding_bentkus}


def rows_needed(p_value: Callable[[Losses], float], level: float) -> int | None:
    """The fewest rows that could pass a test, were there not a single error; None: more than `MOST_ROWS`."""
    low, high = 0, 1
    while p_value(np.zeros(high)) > level:
        low, high = high, high * 2
        if high > MOST_ROWS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if p_value(np.zeros(middle)) <= level else (middle, high)
    return high
