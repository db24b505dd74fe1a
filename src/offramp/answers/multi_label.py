"""Any number of labels per text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.answers.answer_type import AnswerType, Array, Written
from offramp.answers.single_label import divergence

__all__ = ["MultiLabel"]


class MultiLabel(AnswerType):
    """The answer is the set of labels that are likelier than not."""

    name: ClassVar[str] = "multi_label_classification"
    short: ClassVar[str] = "multi-label"
    metric: ClassVar[str] = "f1_micro"
    metrics: ClassVar[tuple[str, ...]] = ("f1_micro", "f1_macro")

    submissions: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[Mapping[str, str]] = {"label": "strings", "score": "float", "exit_layer": "int"}

    def alternatives(self, classes: int) -> int:
        """Each label's yes and no."""
        return 2

    def answers(self, logits: Array) -> Array:
        """0 and 1 per label."""
        return (logits > 0).astype(np.int64)

    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Another set: one label is enough."""
        return np.asarray((answers != others).any(-1))

    def wrong(self, answers: Array, labels: Array, tolerance: float | None = None) -> Array:
        """The share of labels that are wrong."""
        return np.asarray((answers != labels).mean(-1))

    def distance(self, answers: Array, labels: Array) -> Array:
        """0 for the right set, else 1."""
        return np.asarray((answers != labels).any(-1), dtype=np.float64)

    def write(self, logits: Tensor, labels: Sequence[str]) -> Iterator[Written]:
        """The labels above one half, the largest probability, all probabilities."""
        for row in torch.sigmoid(logits).tolist():
            yield [label for label, p in zip(labels, row, strict=True) if p > 0.5], max(row), row

    def format(self, answer: Any, labels: Sequence[str]) -> str:
        """The labels between commas."""
        return ", ".join(label for label, yes in zip(labels, answer, strict=True) if yes) or "none"

    def describe_risk(self, of: str, tolerance: float | None) -> str:
        """Accuracy is that of the labels, one by one."""
        if of == "accuracy":
            return "of the labels wrong beyond the full model's wrong ones"
        return super().describe_risk(of, tolerance)

    def choice(self, logits: Tensor) -> Tensor:
        """The set, (rows, labels)."""
        return logits > 0

    def entropy(self, logits: Tensor) -> Tensor:
        """The mean over the labels of the entropy of each yes or no."""
        return torch.special.entr(torch.sigmoid(torch.stack([logits, -logits]))).sum(0).mean(-1)

    def confidence(self, logits: Tensor) -> Tensor:
        """Of the label that is least sure: every label is at least that sure."""
        return torch.sigmoid(logits.abs()).amin(-1)

    def margin(self, logits: Tensor) -> Tensor:
        """The smallest |2p − 1| over labels."""
        return torch.sigmoid(logits).mul(2).sub(1).abs().amin(-1)

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Binary cross-entropy, the mean over labels."""
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), pos_weight=weights)

    def imitation(self, logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
        """The divergence of each label's yes or no."""
        return divergence(_yes_or_no(logits), _yes_or_no(teacher), temperature, per_row)

    def error_target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The share of labels that are wrong."""
        return ((logits > 0) != labels.bool()).to(logits.dtype).mean(-1)


def _yes_or_no(logits: Tensor) -> Tensor:
    """A label's logit as two classes, each label a row of its own."""
    flat = logits.reshape(-1)
    return torch.stack([flat, torch.zeros_like(flat)], dim=-1)
