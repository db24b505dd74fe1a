"""One class per text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.answers.answer_type import AnswerType, Array, RowPrediction
from offramp.answers.softmax import softmax
from offramp.errors import BadInput

__all__ = ["SingleLabel", "divergence"]


class SingleLabel(AnswerType):
    """The prediction is the most probable class."""

    name: ClassVar[str] = "single_label_classification"
    cli_name: ClassVar[str] = "single-label"
    metric: ClassVar[str] = "acc"
    metrics: ClassVar[tuple[str, ...]] = ("acc", "f1_macro")
    is_single_class: ClassVar[bool] = True

    def answers(self, logits: Array) -> Array:
        """Return class indices."""
        return logits.argmax(-1)

    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Return where the classes differ."""
        return np.asarray(answers != others)

    def outcomes(self, answers: Array, labels: Sequence[str], bands: Sequence[float]) -> NDArray[np.bool_] | None:
        """Return a column per class."""
        return np.asarray(answers)[:, None] == np.arange(len(labels))

    def outcome_names(self, labels: Sequence[str], bands: Sequence[float]) -> list[str]:
        """Return the names of the classes."""
        return list(labels)

    def scores(self, logits: Array) -> Array:
        """Return the probability of every class."""
        return softmax(torch.from_numpy(logits.astype(np.float64))).numpy()

    def error(self, answers: Array, labels: Array, tolerance: float | None = None) -> Array:
        """Return 1 where the class is wrong."""
        return self.differ(answers, labels).astype(np.int64)

    def distance(self, answers: Array, labels: Array) -> Array:
        """Return 1 where the class is wrong."""
        return np.asarray(answers != labels, dtype=np.float64)

    def iter_predictions(self, logits: Tensor, labels: Sequence[str]) -> Iterator[RowPrediction]:
        """Yield the class, its probability and all probabilities."""
        probabilities = softmax(logits)
        best, indices = probabilities.max(-1)
        for score, index, row in zip(best.tolist(), indices.tolist(), probabilities.tolist(), strict=True):
            yield labels[index], score, row

    def format(self, answer: Any, labels: Sequence[str]) -> str:
        """Return the name of the class."""
        return labels[int(answer)]

    def check_labels(self, labels: Sequence[Any]) -> None:
        """Raise if there are fewer than two classes."""
        if len({*map(int, labels)}) < 2:
            raise BadInput("The training rows have only one class; training needs at least two.")

    def choice(self, logits: Tensor) -> Tensor:
        """Return the class, (rows, 1)."""
        return logits.argmax(-1, keepdim=True)

    def entropy(self, logits: Tensor) -> Tensor:
        """Return the entropy of the softmax, between 0 and ln C."""
        return torch.special.entr(softmax(logits)).sum(-1)  # entr(0) is 0, so no 0 · log 0

    def confidence(self, logits: Tensor) -> Tensor:
        """Return the largest probability."""
        return softmax(logits).amax(-1)

    def margin(self, logits: Tensor) -> Tensor:
        """Return the difference of the two largest probabilities."""
        first, second = softmax(logits).topk(2, dim=-1).values.unbind(-1)
        return first - second

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Return the cross-entropy."""
        return functional.cross_entropy(logits, labels.view(-1).long(), weight=weights, label_smoothing=smoothing)

    def distillation_loss(self, logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
        """Return the divergence from the teacher."""
        return divergence(logits, teacher, temperature, per_row)

    def error_target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 where the class is wrong."""
        return (logits.argmax(-1) != labels.view(-1)).to(logits.dtype)


def divergence(logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
    """Return T² · KL(softmax(teacher / T) ‖ softmax(logits / T)), the mean over rows and classes or over rows."""
    target = torch.log_softmax(teacher / temperature, dim=-1)
    terms = target.exp() * (target - torch.log_softmax(logits / temperature, dim=-1))
    return temperature**2 * (terms.sum(-1).mean() if per_row else terms.mean())
