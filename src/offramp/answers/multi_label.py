"""Any number of labels per text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.answers.answer_type import AnswerType, Array, RowPrediction
from offramp.answers.single_label import divergence

__all__ = ["MultiLabel"]


class MultiLabel(AnswerType):
    """The prediction is the set of labels with a probability above 0.5."""

    name: ClassVar[str] = "multi_label_classification"
    cli_name: ClassVar[str] = "multi-label"
    metric: ClassVar[str] = "f1_micro"
    metrics: ClassVar[tuple[str, ...]] = ("f1_micro", "f1_macro")

    submission_formats: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[Mapping[str, str]] = {"label": "strings", "score": "float", "exit_layer": "int"}

    def num_alternatives(self, classes: int) -> int:
        """Return 2: each label is present or absent."""
        return 2

    def answers(self, logits: Array) -> Array:
        """Return 0 and 1 per label."""
        return (logits > 0).astype(np.int64)

    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Return where the sets differ in at least one label."""
        return np.asarray((answers != others).any(-1))

    def outcomes(self, answers: Array, labels: Sequence[str], bands: Sequence[float]) -> NDArray[np.bool_] | None:
        """Return two columns per label: predicted, and not predicted."""
        predicted = np.asarray(answers).astype(bool)
        return np.concatenate([predicted, ~predicted], axis=1)

    def outcome_names(self, labels: Sequence[str], bands: Sequence[float]) -> list[str]:
        """Return the labels, then the absent labels."""
        return [*labels, *(f"not {label}" for label in labels)]

    def scores(self, logits: Array) -> Array:
        """Return the probability of every label."""
        return np.asarray(torch.from_numpy(logits.astype(np.float64)).sigmoid().numpy())

    def error(self, answers: Array, labels: Array, tolerance: float | None = None) -> Array:
        """Return the fraction of wrong labels."""
        return np.asarray((answers != labels).mean(-1))

    def distance(self, answers: Array, labels: Array) -> Array:
        """Return 1 where the set is wrong."""
        return np.asarray((answers != labels).any(-1), dtype=np.float64)

    def iter_predictions(self, logits: Tensor, labels: Sequence[str]) -> Iterator[RowPrediction]:
        """Yield the labels above 0.5, the largest probability and all probabilities."""
        for row in torch.sigmoid(logits).tolist():
            yield [label for label, p in zip(labels, row, strict=True) if p > 0.5], max(row), row

    def format(self, answer: Any, labels: Sequence[str]) -> str:
        """Return the labels, separated by commas."""
        return ", ".join(label for label, present in zip(labels, answer, strict=True) if present) or "none"

    def describe_risk(self, risk_type: str, tolerance: float | None) -> str:
        """Return the same; accuracy counts every label separately."""
        if risk_type == "accuracy":
            return "more labels are wrong than with the full model"
        return super().describe_risk(risk_type, tolerance)

    def choice(self, logits: Tensor) -> Tensor:
        """Return the set of labels, (rows, labels)."""
        return logits > 0

    def entropy(self, logits: Tensor) -> Tensor:
        """Return the mean binary entropy over the labels."""
        return torch.special.entr(torch.sigmoid(torch.stack([logits, -logits]))).sum(0).mean(-1)

    def confidence(self, logits: Tensor) -> Tensor:
        """Return the confidence of the least certain label."""
        return torch.sigmoid(logits.abs()).amin(-1)

    def margin(self, logits: Tensor) -> Tensor:
        """Return the smallest |2p − 1| over the labels."""
        return torch.sigmoid(logits).mul(2).sub(1).abs().amin(-1)

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Return the binary cross-entropy, averaged over the labels."""
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), pos_weight=weights)

    def distillation_loss(self, logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
        """Return the binary divergence of each label from the teacher."""
        return divergence(_binary_logits(logits), _binary_logits(teacher), temperature, per_row)

    def error_target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the fraction of wrong labels."""
        return ((logits > 0) != labels.bool()).to(logits.dtype).mean(-1)


def _binary_logits(logits: Tensor) -> Tensor:
    """Return each logit as a separate row with two classes."""
    flat = logits.reshape(-1)
    return torch.stack([flat, torch.zeros_like(flat)], dim=-1)
