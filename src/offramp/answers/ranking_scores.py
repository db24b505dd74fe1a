"""Quality of rankings against judgements: nDCG and the reciprocal rank of the first relevant document."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DEPTH", "ndcg", "reciprocal_rank"]

DEPTH = 10  # documents that count
Array = NDArray[Any]


def ndcg(orders: Array, grades: Array) -> NDArray[np.float64]:
    """Return nDCG@10 per query; 0 if no document is relevant.

    `orders` is `RankingAnswers.values`; `grades` holds the grade of every document, per query. The gain is 2^grade − 1.
    """
    return np.array([_ndcg(order[1:], np.asarray(row)) for order, row in zip(orders, grades, strict=True)], np.float64)


def reciprocal_rank(orders: Array, grades: Array) -> NDArray[np.float64]:
    """Return 1 / the rank of the first relevant document among the first 10 per query; 0 if there is none."""
    ranks = []
    for order, row in zip(orders, grades, strict=True):
        relevant = [rank for rank, index in enumerate(_top(order[1:]), 1) if row[index] > 0]
        ranks.append(1 / relevant[0] if relevant else 0.0)
    return np.array(ranks, dtype=np.float64)


def _top(order: Array) -> list[int]:
    return [int(index) for index in order[:DEPTH] if index >= 0]


def _ndcg(order: Array, grades: Array) -> float:
    gains = np.exp2(np.asarray(grades, dtype=np.float64)) - 1
    top = gains[_top(order)]
    best = np.sort(gains)[::-1][:DEPTH]
    ideal = float((best / np.log2(np.arange(len(best)) + 2)).sum())
    return float((top / np.log2(np.arange(len(top)) + 2)).sum()) / ideal if ideal else 0.0
