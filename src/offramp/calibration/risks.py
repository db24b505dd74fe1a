"""What can be guaranteed: every row has a loss from exiting early, and the risk is the mean loss.

| risk           | loss of a row                                      | labels | test                            |
|----------------|----------------------------------------------------|--------|---------------------------------|
| `disagreement` | prediction differs from the full model's: 0 or 1   | no     | exact binomial                  |
| `accuracy`     | early error minus full model's error: −1, 0 or 1   | yes    | betting; clipped at 0: binomial |

For regression, predictions differ or are wrong beyond a tolerance. For multi-label, the error is the fraction of wrong
labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers import AnswerType
from offramp.calibration.bounds import BOUNDS
from offramp.errors import BadInput, BadValue, UnknownName
from offramp.evaluation.traces.trace import Replayed, Trace

__all__ = ["RISKS", "Guarantee", "Risk"]

RISKS = {
    "disagreement": "predictions that differ from the full model's",
    "accuracy": "accuracy lost compared with the full model",
}
DEFAULT_TEST = {"disagreement": "binomial", "accuracy": "betting"}


@dataclass(frozen=True)
class Guarantee:
    """An upper bound on a risk, with a confidence level."""

    risk_type: str = "disagreement"
    risk: float = 0.02
    confidence: float = 0.9
    test: str = "auto"
    tolerance: float | None = None  # regression only
    reference: str | None = None  # name of the model to compare with, if not the full model
    frozen: bool = False  # the reference is the last exit itself, under the name of the original model

    def __post_init__(self) -> None:
        if self.risk_type not in RISKS:
            raise UnknownName("risk type", self.risk_type, RISKS)
        if self.test == "auto":
            object.__setattr__(self, "test", DEFAULT_TEST[self.risk_type])
        if self.test not in BOUNDS:
            raise UnknownName("test", self.test, ["auto", *BOUNDS])
        if not 0 < self.risk < 1:
            raise BadValue(f"`risk` must be between 0 and 1 (0.01 is one percent), got {self.risk:g}.")
        if not 0 < self.confidence < 1:
            raise BadValue(f"`confidence` must be between 0 and 1 (such as 0.9), got {self.confidence:g}.")
        if self.tolerance is not None and not 0 <= self.tolerance < float("inf"):
            raise BadValue(f"`tolerance` must be finite and at least 0, got {self.tolerance:g}.")

    def check(self, answer_type: AnswerType, labelled: bool) -> None:
        """Raise if the guarantee does not apply to this answer type, or needs labels that are missing."""
        if self.risk_type == "accuracy" and not labelled:
            raise BadInput(
                "`risk_type='accuracy'` needs labels, and these rows have none. Use `risk_type='disagreement'`."
            )
        if answer_type.needs_tolerance and self.tolerance is None:
            raise BadValue("A regression needs `tolerance=`: the largest difference that still counts as equal.")
        if not answer_type.needs_tolerance and self.tolerance is not None:
            raise BadValue("`tolerance=` is for regression only; remove it.")

    @property
    def level(self) -> float:
        """δ: the probability with which the guarantee may be violated."""
        return 1 - self.confidence

    def p_value(self, losses: NDArray[Any]) -> float:
        """Return the p-value of the hypothesis that the risk is above the guaranteed one."""
        if self.risk_type == "accuracy" and self.test == "binomial":
            return BOUNDS["binomial"](np.maximum(losses, 0), self.risk, self.level)
        if self.risk_type == "accuracy" and self.test == "hoeffding-bentkus":  # from −1 … 1 to 0 … 1
            return BOUNDS[self.test]((losses + 1) / 2, (self.risk + 1) / 2, self.level)
        return BOUNDS[self.test](losses, self.risk, self.level)

    def describe(self, answer_type: AnswerType) -> str:
        """Return the guarantee as text, such as "at most 1 % of predictions differ from the full model's"."""
        risk = answer_type.describe_risk(self.risk_type, self.tolerance)
        if self.reference is not None:
            risk = risk.replace("the full model", self.reference)
        return f"at most {100 * self.risk:g} % {risk}"


@dataclass(frozen=True)
class Risk:
    """The losses that a guarantee is about, on the rows of a trace."""

    guarantee: Guarantee
    trace: Trace

    def __post_init__(self) -> None:
        self.guarantee.check(self.trace.answer_type, self.trace.labels is not None)

    def losses_per_exit(self) -> NDArray[Any]:
        """Return the loss of every row at every exit, (rows, exits)."""
        trace, rows = self.trace, self.trace.rows
        numbers = [(np.full(rows, point.number), np.full(rows, point.layer)) for point in trace.points]
        per_exit = [Replayed(*number, trace.answers_at(index)) for index, number in enumerate(numbers)]
        return np.stack([self.losses(replayed) for replayed in per_exit], 1)

    def losses(self, replayed: Replayed) -> NDArray[Any]:
        """Return the loss of every row after early exits."""
        answer_type, tolerance = self.trace.answer_type, self.guarantee.tolerance
        if self.guarantee.risk_type == "disagreement":
            return answer_type.differ(replayed.answers, self.trace.expected, tolerance).astype(np.int64)
        labels = np.asarray(self.trace.labels)
        early, full = (
            answer_type.error(answers, labels, tolerance) for answers in (replayed.answers, self.trace.expected)
        )
        return early - full
