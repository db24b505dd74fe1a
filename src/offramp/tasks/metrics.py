"""Metrics as the benchmarks publish them, from scikit-learn and SciPy; numbers between −1 and 1, not percent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import f1_score, matthews_corrcoef

from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from offramp.registry import Registry

__all__ = ["METRICS", "Metric", "score"]

Answers = NDArray[np.int64] | NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """A name and a function of predictions and labels, both (rows,) or (rows, labels)."""

    name: str
    compute: Callable[[Answers, Answers], float]
    problems: tuple[Problem, ...] = (SINGLE_LABEL, MULTI_LABEL)
    classes: int | None = None  # where it is for so many alone
    per_row: Callable[[Answers, Answers], NDArray[np.bool_]] | None = None  # where it is the mean of a value per row

    def fits(self, problem: Problem, labels: int) -> bool:
        """Whether it makes sense for a task."""
        return problem in self.problems and self.classes in (None, labels)


def _pearson(predictions: Answers, labels: Answers) -> float:
    return _defined(stats.pearsonr, predictions, labels)


def _spearman(predictions: Answers, labels: Answers) -> float:
    return _defined(stats.spearmanr, predictions, labels)


def _defined(correlation: Callable[..., tuple[float, float]], predictions: Answers, labels: Answers) -> float:
    if len(set(np.ravel(predictions))) < 2 or len(set(np.ravel(labels))) < 2:
        return 0.0  # a constant correlates with nothing
    return float(correlation(np.ravel(predictions), np.ravel(labels))[0])


def _f1(predictions: Answers, labels: Answers) -> float:
    return float(f1_score(labels, predictions, zero_division=0.0))


def _right(predictions: Answers, labels: Answers) -> NDArray[np.bool_]:
    same = predictions == labels
    return same.all(-1) if same.ndim > 1 else same


def _accuracy(predictions: Answers, labels: Answers) -> float:
    return float(_right(predictions, labels).mean())  # without scikit-learn's checks: curves ask often


SINGLE, VALUES = (SINGLE_LABEL,), (REGRESSION,)

METRICS: Registry[Metric] = Registry(
    "metric",
    [
        Metric("acc", _accuracy, per_row=_right),
        Metric("f1", _f1, SINGLE, 2),
        Metric("acc_and_f1", lambda p, y: (_accuracy(p, y) + _f1(p, y)) / 2, SINGLE, 2),
        Metric("f1_macro", lambda p, y: float(f1_score(y, p, average="macro", zero_division=0.0))),
        Metric("f1_micro", lambda p, y: float(f1_score(y, p, average="micro", zero_division=0.0))),
        Metric("mcc", lambda p, y: float(matthews_corrcoef(y, p)), SINGLE),
        Metric("pearson", _pearson, VALUES),
        Metric("spearmanr", _spearman, VALUES),
        Metric("corr", lambda p, y: (_pearson(p, y) + _spearman(p, y)) / 2, VALUES),
    ],
)


def score(names: Sequence[str], predictions: Answers, labels: Answers) -> dict[str, float]:
    """Every named metric."""
    return {name: METRICS[name].compute(predictions, labels) for name in names}
