"""Precision, recall and F1 of entities by the definition of seqeval (CoNLL-2003): type and both ends must be right."""

from __future__ import annotations

from collections import Counter
from typing import Any

from numpy.typing import NDArray

__all__ = ["entity_f1", "entity_precision", "entity_recall", "scores_by_type"]

Array = NDArray[Any]
Counts = tuple[int, int, int]  # correct, predicted, labelled


def entity_f1(answers: Array, labels: Array) -> float:
    """Return the F1 score over all entities."""
    return _scores(_count(answers, labels))["f1"]


def entity_precision(answers: Array, labels: Array) -> float:
    """Return the fraction of predicted entities that are correct."""
    return _scores(_count(answers, labels))["precision"]


def entity_recall(answers: Array, labels: Array) -> float:
    """Return the fraction of labelled entities that are predicted."""
    return _scores(_count(answers, labels))["recall"]


def scores_by_type(answers: Any, labels: Any) -> dict[str, dict[str, float]]:
    """Return precision, recall, F1 and the number of labelled entities of each type."""
    correct, predicted, labelled = Counter[str](), Counter[str](), Counter[str]()
    for entities, expected in zip(answers, labels, strict=True):
        if entities or expected:
            entities, expected = set(entities), set(expected)
            correct.update(kind for kind, _, _ in entities & expected)
            predicted.update(kind for kind, _, _ in entities)
            labelled.update(kind for kind, _, _ in expected)
    return {
        kind: _scores((correct[kind], predicted[kind], labelled[kind])) | {"support": float(labelled[kind])}
        for kind in sorted({*predicted, *labelled})
    }


def _count(answers: Array, labels: Array) -> Counts:
    correct = predicted = labelled = 0
    for entities, expected in zip(answers, labels, strict=True):
        if entities or expected:
            predicted += len(entities)
            labelled += len(expected)
            correct += len(expected) if entities == expected else len(set(entities).intersection(expected))
    return correct, predicted, labelled


def _scores(counts: Counts) -> dict[str, float]:
    correct, predicted, labelled = counts
    return {
        "precision": correct / predicted if predicted else 0.0,
        "recall": correct / labelled if labelled else 0.0,
        "f1": 2 * correct / (predicted + labelled) if predicted + labelled else 0.0,
    }
