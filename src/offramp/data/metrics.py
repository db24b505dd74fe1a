"""Metrics as the benchmarks publish them, to the last digit; numbers between −1 and 1, not percent.

F1 and Matthews' correlation are counted here as scikit-learn counts them, without its checks of every call:
intervals and curves ask thousands of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from offramp.answers import MULTI_LABEL, REGRESSION, SINGLE_LABEL, SPAN, AnswerType
from offramp.answers.overlap import exact, f1
from offramp.registry import Registry

__all__ = ["AGREEMENT", "METRICS", "Metric", "score"]

Answers = NDArray[np.int64] | NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Metric:
    """A name and a function of predictions and labels, both (rows,) or (rows, labels)."""

    name: str
    compute: Callable[[Answers, Answers], float]
    problems: tuple[AnswerType, ...] = (SINGLE_LABEL, MULTI_LABEL)
    classes: int | None = None  # where it is for so many alone
    per_row: Callable[[Answers, Answers], NDArray[Any]] | None = None  # where it is the mean of a value per row

    def fits(self, answer_type: AnswerType, labels: int) -> bool:
        """Whether it makes sense for a task."""
        return answer_type in self.problems and self.classes in (None, labels)


def _pearson(predictions: Answers, labels: Answers) -> float:
    return _defined(stats.pearsonr, predictions, labels)


def _spearman(predictions: Answers, labels: Answers) -> float:
    return _defined(stats.spearmanr, predictions, labels)


def _defined(correlation: Callable[..., tuple[float, float]], predictions: Answers, labels: Answers) -> float:
    if len(set(np.ravel(predictions))) < 2 or len(set(np.ravel(labels))) < 2:
        return 0.0  # a constant correlates with nothing
    return float(correlation(np.ravel(predictions), np.ravel(labels))[0])


def _f1(predictions: Answers, labels: Answers) -> float:
    said, true = predictions == 1, labels == 1
    return _mean_f1((said & true).sum(), said.sum() + true.sum())


def _f1_macro(predictions: Answers, labels: Answers) -> float:
    return _mean_f1(*_hits(predictions, labels))


def _f1_micro(predictions: Answers, labels: Answers) -> float:
    hits, named = _hits(predictions, labels)
    return _mean_f1(hits.sum(), named.sum())


def _hits(predictions: Answers, labels: Answers) -> tuple[Counts, Counts]:
    """Per label, how often both name it, and how often either does; of classes, those that somebody names."""
    if predictions.ndim > 1:
        said, true = predictions > 0, labels > 0
        return (said & true).sum(0), said.sum(0) + true.sum(0)
    ours, theirs, classes = _numbered(predictions, labels)
    hits = np.bincount(ours[ours == theirs], minlength=classes)
    return hits, np.bincount(ours, minlength=classes) + np.bincount(theirs, minlength=classes)


def _numbered(predictions: Answers, labels: Answers) -> tuple[Counts, Counts, int]:
    """Both in numbers from 0 up, and how many there are."""
    names, places = np.unique(np.concatenate([predictions, labels]), return_inverse=True)
    return places[: len(predictions)], places[len(predictions) :], len(names)


def _mean_f1(hits: Counts, named: Counts) -> float:
    """Twice the hits by the mentions; 0 where nobody names a label."""
    return float(np.mean(2 * hits / np.maximum(named, 1)))


def _matthews(predictions: Answers, labels: Answers) -> float:
    said, true, classes = _numbered(predictions, labels)
    rows, hits = float(len(said)), float((said == true).sum())
    ours, theirs = (np.bincount(one, minlength=classes).astype(np.float64) for one in (said, true))
    spread = (rows**2 - ours @ ours) * (rows**2 - theirs @ theirs)
    return float((hits * rows - theirs @ ours) / np.sqrt(spread)) if spread else 0.0


def _right(predictions: Answers, labels: Answers) -> NDArray[np.bool_]:
    same = predictions == labels
    return same.all(-1) if same.ndim > 1 else same


def _exact(predictions: Answers, labels: Answers) -> NDArray[np.float64]:
    return np.array([exact(text, golds) for text, golds in zip(predictions, labels, strict=True)], dtype=np.float64)


def _overlap(predictions: Answers, labels: Answers) -> NDArray[np.float64]:
    return np.array([f1(text, golds) for text, golds in zip(predictions, labels, strict=True)], dtype=np.float64)


def _accuracy(predictions: Answers, labels: Answers) -> float:
    return float(_right(predictions, labels).mean())


AGREEMENT = "agreement"
SINGLE, VALUES, SPANS = (SINGLE_LABEL,), (REGRESSION,), (SPAN,)

METRICS: Registry[Metric] = Registry(
    "metric",
    [
        Metric("acc", _accuracy, per_row=_right),
        Metric("f1", _f1, SINGLE, 2),
        Metric("acc_and_f1", lambda p, y: (_accuracy(p, y) + _f1(p, y)) / 2, SINGLE, 2),
        Metric("f1_macro", _f1_macro),
        Metric("f1_micro", _f1_micro),
        Metric("mcc", _matthews, SINGLE),
        Metric("pearson", _pearson, VALUES),
        Metric("spearmanr", _spearman, VALUES),
        Metric("corr", lambda p, y: (_pearson(p, y) + _spearman(p, y)) / 2, VALUES),
        Metric("span_f1", lambda p, y: float(_overlap(p, y).mean()), SPANS, per_row=_overlap),
        Metric(AGREEMENT, _accuracy, per_row=_right),  # where the labels are another model's answers
        Metric("exact_match", lambda p, y: float(_exact(p, y).mean()), SPANS, per_row=_exact),
    ],
)


def score(names: Sequence[str], predictions: Answers, labels: Answers) -> dict[str, float]:
    """Every named metric."""
    return {name: METRICS[name].compute(predictions, labels) for name in names}
