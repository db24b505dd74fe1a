"""A number per text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.answers.answer_type import AnswerType, Array, RowPrediction

__all__ = ["Regression"]

MIN_DISTANCE = 1e-4  # added to the difference of two values before the logarithm


class Regression(AnswerType):
    """The prediction is a value; two values agree within a tolerance in the units of the label."""

    name: ClassVar[str] = "regression"
    cli_name: ClassVar[str] = "regression"
    metric: ClassVar[str] = "corr"
    metrics: ClassVar[tuple[str, ...]] = ("corr", "pearson", "spearmanr")
    has_labels: ClassVar[bool] = False
    has_probabilities: ClassVar[bool] = False
    needs_tolerance: ClassVar[bool] = True

    def answers(self, logits: Array) -> Array:
        """Return the values."""
        return logits[..., 0].astype(np.float64)

    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Return where the difference exceeds the tolerance."""
        return np.asarray(np.abs(answers - others) > _required(tolerance))

    def outcomes(self, answers: Array, labels: Sequence[str], bands: Sequence[float]) -> NDArray[np.bool_] | None:
        """Return a column per band of values; a band includes its lower end."""
        if not bands:
            return None
        return np.searchsorted(bands, answers, side="right")[:, None] == np.arange(len(bands) + 1)

    def outcome_names(self, labels: Sequence[str], bands: Sequence[float]) -> list[str]:
        """Return the names of the bands, such as "below 3" and "3 and above"."""
        if not bands:
            return []
        ends = [f"{band:.10g}" for band in bands]
        return [f"below {ends[0]}", *(f"{low} to {high}" for low, high in pairwise(ends)), f"{ends[-1]} and above"]

    def scores(self, logits: Array) -> Array:
        """Return the values, (rows, 1)."""
        return logits.astype(np.float64)

    def error(self, answers: Array, labels: Array, tolerance: float | None = None) -> Array:
        """Return 1 where the difference exceeds the tolerance."""
        return self.differ(answers, labels, tolerance).astype(np.int64)

    def distance(self, answers: Array, labels: Array) -> Array:
        """Return the absolute difference."""
        return np.asarray(np.abs(answers - labels))

    def iter_predictions(self, logits: Tensor, labels: Sequence[str]) -> Iterator[RowPrediction]:
        """Yield no label and the value."""
        for values in logits.tolist():
            yield None, values[0], values

    def format(self, answer: Any, labels: Sequence[str]) -> str:
        """Return the value with three decimals."""
        return f"{float(answer):.3f}"

    def same_choices(self, choices: Array, others: Array) -> NDArray[np.bool_]:
        """Return where the difference is at most a tenth of the range of values."""
        return np.asarray(np.abs(choices - others).reshape(len(others), -1).max(1) <= np.ptp(others) / 10)

    def is_constant(self, answers: Array) -> bool:
        """Return False: constant values are accepted."""
        return False

    def label_array(self, labels: Sequence[Any]) -> Array:
        """Return the values."""
        return np.asarray(labels, dtype=np.float64)

    def label_order(self, name: str, other_labels: Sequence[str], labels: Sequence[str]) -> list[int]:
        """Return the only output."""
        return [0]

    def describe_labels(self, labels: Sequence[str]) -> str:
        """Return a description: there are no labels."""
        return "one number"

    def describe_risk(self, risk_type: str, tolerance: float | None) -> str:
        """Return the same, with the tolerance."""
        if risk_type == "accuracy":
            return f"more predictions are further than {tolerance:g} from the label than with the full model"
        return f"of predictions are further than {tolerance:g} from the full model's"

    def log_odds(self, logits: Tensor, memory: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return minus the logarithm of the difference from the previous exit's value.

        A value has no probability, so this is used instead of log-odds; it is 0 at the first exit.
        """
        value = logits[:, 0]
        if memory is None:
            return torch.zeros_like(value), {"value": value}
        return -torch.log((value - memory["value"]).abs() + MIN_DISTANCE), {"value": value}

    def certainty(self, logits: Array, exits: Array) -> NDArray[np.float64]:
        """Return minus the largest change between consecutive exits."""
        if logits.shape[1] < 2:
            return np.zeros(len(logits))
        return np.asarray(-np.abs(np.diff(logits[..., 0], axis=1)).max(1), dtype=np.float64)

    def choice(self, logits: Tensor) -> Tensor:
        """Return the value, (rows, 1)."""
        return logits

    def agree(self, choice: Tensor, previous: Tensor, tolerance: float | None) -> Tensor:
        """Return where the difference is strictly below the tolerance, as in PABEE (arXiv:2006.04152)."""
        return ((choice - previous).abs() < _required(tolerance)).all(-1)

    def entropy(self, logits: Tensor) -> Tensor:
        """Return 0, the entropy of a softmax over one output, as the original implementations do."""
        return torch.special.entr(torch.softmax(logits, dim=-1)).sum(-1)

    def confidence(self, logits: Tensor) -> Tensor:
        """Return 1, the probability in a softmax over one output, as the original implementations do."""
        return torch.softmax(logits, dim=-1).amax(-1)

    def margin(self, logits: Tensor) -> Tensor:
        """Raise: there is no runner-up."""
        raise NotImplementedError("a regression has no margin; Margin.check raises for it")

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Return the mean squared error."""
        return functional.mse_loss(logits, labels.to(logits.dtype).view_as(logits))

    def distillation_loss(self, logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
        """Return the mean squared error to the teacher; the original implementations do not support regression."""
        return functional.mse_loss(logits, teacher)

    def error_target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return |tanh(value − label)|."""
        return (logits.squeeze(-1) - labels.to(logits.dtype).view(-1)).tanh().abs()


def _required(tolerance: float | None) -> float:
    assert tolerance is not None, "callers check that a tolerance is set"
    return tolerance
