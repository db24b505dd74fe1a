"""The benchmarks' metrics, identical to the official ones; values between −1 and 1, not percent.

F1 and Matthews correlation equal scikit-learn's, without its per-call input checks: confidence intervals and curves
compute them thousands of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers import MULTI_LABEL, RANKING, REGRESSION, SINGLE_LABEL, SPAN, TOKEN, AnswerType
from offramp.answers.overlap import exact_match, token_f1
from offramp.answers.ranking_scores import ndcg, reciprocal_rank
from offramp.answers.token_scores import entity_f1, entity_precision, entity_recall
from offramp.registry import Registry

__all__ = ["AGREEMENT", "METRICS", "Metric", "score"]

LabelArray = NDArray[np.int64] | NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Metric:
    """A metric: a function of predictions and labels, both (rows,) or (rows, labels)."""

    name: str
    compute: Callable[[LabelArray, LabelArray], float]
    answer_types: tuple[AnswerType, ...] = (SINGLE_LABEL, MULTI_LABEL)
    num_classes: int | None = None  # None: any number
    per_row: Callable[[LabelArray, LabelArray], NDArray[Any]] | None = None  # if it is a mean over rows

    def supports(self, answer_type: AnswerType, num_labels: int) -> bool:
        """Whether the metric is defined for such a task."""
        return answer_type in self.answer_types and self.num_classes in (None, num_labels)


def _pearson(predictions: LabelArray, labels: LabelArray) -> float:
    from scipy import stats  # slow to import

    return _correlation(stats.pearsonr, predictions, labels)


def _spearman(predictions: LabelArray, labels: LabelArray) -> float:
    from scipy import stats

    return _correlation(stats.spearmanr, predictions, labels)


def _correlation(function: Callable[..., tuple[float, float]], predictions: LabelArray, labels: LabelArray) -> float:
    if len(set(np.ravel(predictions))) < 2 or len(set(np.ravel(labels))) < 2:
        return 0.0  # undefined for constant values
    return float(function(np.ravel(predictions), np.ravel(labels))[0])


def _f1(predictions: LabelArray, labels: LabelArray) -> float:
    predicted, actual = predictions == 1, labels == 1
    return _mean_f1((predicted & actual).sum(), predicted.sum() + actual.sum())


def _f1_macro(predictions: LabelArray, labels: LabelArray) -> float:
    return _mean_f1(*_f1_counts(predictions, labels))


def _f1_micro(predictions: LabelArray, labels: LabelArray) -> float:
    true_positives, occurrences = _f1_counts(predictions, labels)
    return _mean_f1(true_positives.sum(), occurrences.sum())


def _f1_counts(predictions: LabelArray, labels: LabelArray) -> tuple[Counts, Counts]:
    """Return per label the true positives, and how often it occurs in the predictions plus in the labels."""
    if predictions.ndim > 1:
        predicted, actual = predictions > 0, labels > 0
        return (predicted & actual).sum(0), predicted.sum(0) + actual.sum(0)
    predicted_class, actual_class, classes = _class_indices(predictions, labels)
    true_positives = np.bincount(predicted_class[predicted_class == actual_class], minlength=classes)
    occurrences = np.bincount(predicted_class, minlength=classes) + np.bincount(actual_class, minlength=classes)
    return true_positives, occurrences


def _class_indices(predictions: LabelArray, labels: LabelArray) -> tuple[Counts, Counts, int]:
    """Return predictions and labels as indices of the classes that occur, and the number of these classes."""
    classes, indices = np.unique(np.concatenate([predictions, labels]), return_inverse=True)
    return indices[: len(predictions)], indices[len(predictions) :], len(classes)


def _mean_f1(true_positives: Counts, occurrences: Counts) -> float:
    """Return the mean F1 over labels; 0 for a label that never occurs."""
    return float(np.mean(2 * true_positives / np.maximum(occurrences, 1)))


def _matthews(predictions: LabelArray, labels: LabelArray) -> float:
    predicted, actual, classes = _class_indices(predictions, labels)
    rows, correct = float(len(predicted)), float((predicted == actual).sum())
    predicted_counts, actual_counts = (
        np.bincount(indices, minlength=classes).astype(np.float64) for indices in (predicted, actual)
    )
    variances = (rows**2 - predicted_counts @ predicted_counts) * (rows**2 - actual_counts @ actual_counts)
    return float((correct * rows - actual_counts @ predicted_counts) / np.sqrt(variances)) if variances else 0.0


def _correct(predictions: LabelArray, labels: LabelArray) -> NDArray[np.bool_]:
    equal = predictions == labels
    return equal.all(-1) if equal.ndim > 1 else equal


def _exact_matches(predictions: LabelArray, labels: LabelArray) -> NDArray[np.float64]:
    return np.array(
        [exact_match(text, golds) for text, golds in zip(predictions, labels, strict=True)], dtype=np.float64
    )


def _token_f1s(predictions: LabelArray, labels: LabelArray) -> NDArray[np.float64]:
    return np.array([token_f1(text, golds) for text, golds in zip(predictions, labels, strict=True)], dtype=np.float64)


def _accuracy(predictions: LabelArray, labels: LabelArray) -> float:
    return float(_correct(predictions, labels).mean())


AGREEMENT = "agreement"
SINGLE, VALUES, SPANS, RANKINGS, TOKENS = (SINGLE_LABEL,), (REGRESSION,), (SPAN,), (RANKING,), (TOKEN,)

METRICS: Registry[Metric] = Registry(
    "metric",
    [
        Metric("acc", _accuracy, per_row=_correct),
        Metric("f1", _f1, SINGLE, 2),
        Metric("acc_and_f1", lambda p, y: (_accuracy(p, y) + _f1(p, y)) / 2, SINGLE, 2),
        Metric("f1_macro", _f1_macro),
        Metric("f1_micro", _f1_micro),
        Metric("mcc", _matthews, SINGLE),
        Metric("pearson", _pearson, VALUES),
        Metric("spearmanr", _spearman, VALUES),
        Metric("corr", lambda p, y: (_pearson(p, y) + _spearman(p, y)) / 2, VALUES),
        Metric("span_f1", lambda p, y: float(_token_f1s(p, y).mean()), SPANS, per_row=_token_f1s),
        Metric(AGREEMENT, _accuracy, per_row=_correct),  # the labels are another model's predictions
        Metric("ndcg_at_10", lambda p, y: float(ndcg(p, y).mean()), RANKINGS, per_row=ndcg),
        Metric("mrr_at_10", lambda p, y: float(reciprocal_rank(p, y).mean()), RANKINGS, per_row=reciprocal_rank),
        Metric("entity_f1", entity_f1, TOKENS),
        Metric("entity_precision", entity_precision, TOKENS),
        Metric("entity_recall", entity_recall, TOKENS),
        Metric("exact_match", lambda p, y: float(_exact_matches(p, y).mean()), SPANS, per_row=_exact_matches),
    ],
)


def score(names: Sequence[str], predictions: LabelArray, labels: LabelArray) -> dict[str, float]:
    """Return the value of each named metric."""
    return {name: METRICS[name].compute(predictions, labels) for name in names}
