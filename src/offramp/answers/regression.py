"""A number per text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.answers.answer_type import AnswerType, Array, Written

__all__ = ["Regression"]

NEAREST = 1e-4  # of two values, in the units of the answer


class Regression(AnswerType):
    """The answer is the value; two agree within a tolerance, in the units of the answer."""

    name: ClassVar[str] = "regression"
    short: ClassVar[str] = "regression"
    metric: ClassVar[str] = "corr"
    metrics: ClassVar[tuple[str, ...]] = ("corr", "pearson", "spearmanr")
    has_labels: ClassVar[bool] = False
    has_probabilities: ClassVar[bool] = False
    needs_tolerance: ClassVar[bool] = True

    def answers(self, logits: Array) -> Array:
        """Values."""
        return logits[..., 0].astype(np.float64)

    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Beyond the tolerance."""
        return np.asarray(np.abs(answers - others) > _given(tolerance))

    def wrong(self, answers: Array, labels: Array, tolerance: float | None = None) -> Array:
        """1 beyond the tolerance."""
        return self.differ(answers, labels, tolerance).astype(np.int64)

    def distance(self, answers: Array, labels: Array) -> Array:
        """The absolute difference."""
        return np.asarray(np.abs(answers - labels))

    def write(self, logits: Tensor, labels: Sequence[str]) -> Iterator[Written]:
        """No label; the value."""
        for values in logits.tolist():
            yield None, values[0], values

    def format(self, answer: Any, labels: Sequence[str]) -> str:
        """With three decimals."""
        return f"{float(answer):.3f}"

    def same(self, choices: Array, others: Array) -> NDArray[np.bool_]:
        """To a tenth of the spread."""
        return np.asarray(np.abs(choices - others).reshape(len(others), -1).max(1) <= np.ptp(others) / 10)

    def is_constant(self, answers: Array) -> bool:
        """Values are not told apart."""
        return False

    def label_array(self, labels: Sequence[Any]) -> Array:
        """Values."""
        return np.asarray(labels, dtype=np.float64)

    def label_order(self, name: str, theirs: Sequence[str], ours: Sequence[str]) -> list[int]:
        """There is one output."""
        return [0]

    def describe_labels(self, labels: Sequence[str]) -> str:
        """It has none."""
        return "one number"

    def describe_risk(self, of: str, tolerance: float | None) -> str:
        """Beyond the tolerance."""
        if of == "accuracy":
            return f"answers lost, which are right within {tolerance:g} of the label"
        return f"answers further than {tolerance:g} from the full model's"

    def log_odds(self, logits: Tensor, memory: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Tensor]]:
        """How near the value is to the exit's before: minus the logarithm of the distance.

        A value has no probability, so this takes the place of its log-odds; the first exit has nothing to compare with.
        """
        value = logits[:, 0]
        if memory is None:
            return torch.zeros_like(value), {"value": value}
        return -torch.log((value - memory["value"]).abs() + NEAREST), {"value": value}

    def certainty(self, logits: Array, exits: Array) -> NDArray[np.float64]:
        """What changes little from exit to exit is certain."""
        if logits.shape[1] < 2:
            return np.zeros(len(logits))
        return np.asarray(-np.abs(np.diff(logits[..., 0], axis=1)).max(1), dtype=np.float64)

    def choice(self, logits: Tensor) -> Tensor:
        """The value, (rows, 1)."""
        return logits

    def agree(self, choice: Tensor, before: Tensor, tolerance: float | None) -> Tensor:
        """Strictly below the tolerance, as in PABEE (arXiv:2006.04152)."""
        return ((choice - before).abs() < _given(tolerance)).all(-1)

    def entropy(self, logits: Tensor) -> Tensor:
        """Of a softmax over one output, as the originals compute it: 0."""
        return torch.special.entr(torch.softmax(logits, dim=-1)).sum(-1)

    def confidence(self, logits: Tensor) -> Tensor:
        """Likewise: 1."""
        return torch.softmax(logits, dim=-1).amax(-1)

    def margin(self, logits: Tensor) -> Tensor:
        """There is no next answer."""
        raise NotImplementedError("a regression has no margin; Margin.check refuses it")

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Mean squared error."""
        return functional.mse_loss(logits, labels.to(logits.dtype).view_as(logits))

    def imitation(self, logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
        """The squared distance to the teacher; the originals cannot do it."""
        return functional.mse_loss(logits, teacher)

    def error_target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """|tanh(value − label)|."""
        return (logits.squeeze(-1) - labels.to(logits.dtype).view(-1)).tanh().abs()


def _given(tolerance: float | None) -> float:
    assert tolerance is not None, "whoever compares values checks that there is a tolerance"
    return tolerance
