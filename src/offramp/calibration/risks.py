"""What may be promised: a loss per row of leaving early, whose mean is the risk.

| risk           | a row's loss                                     | labels | test                             |
|----------------|--------------------------------------------------|--------|----------------------------------|
| `disagreement` | another answer than the full model's             | no     | exact binomial                   |
| `accuracy`     | early wrong minus full wrong: −1, 0 or 1         | yes    | betting; clipped at 0: binomial  |

A regression's answer is wrong, or another one, beyond a tolerance. Multi-label: the share of wrong labels.
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
    "disagreement": "answers that differ from the full model's",
    "accuracy": "accuracy lost against the full model",
}
USUAL_TEST = {"disagreement": "binomial", "accuracy": "betting"}


@dataclass(frozen=True)
class Guarantee:
    """At most `risk` of what, with which confidence."""

    risk_type: str = "disagreement"
    risk: float = 0.01
    confidence: float = 0.95
    test: str = "auto"
    tolerance: float | None = None  # of a regression
    reference: str | None = None  # whose answers are to be kept, where not the full model's
    frozen: bool = False  # the reference is the last exit itself, under the name that users know

    def __post_init__(self) -> None:
        if self.risk_type not in RISKS:
            raise UnknownName("risk type", self.risk_type, RISKS)
        if self.test == "auto":
            object.__setattr__(self, "test", USUAL_TEST[self.risk_type])
        if self.test not in BOUNDS:
            raise UnknownName("test", self.test, ["auto", *BOUNDS])
        if not 0 < self.risk < 1:
            raise BadValue(f"`risk` is {self.risk:g}; it lies between 0 and 1, such as 0.01 for one percent.")
        if not 0 < self.confidence < 1:
            raise BadValue(f"`confidence` is {self.confidence:g}; it lies between 0 and 1, such as 0.95.")
        if self.tolerance is not None and not 0 <= self.tolerance < float("inf"):
            raise BadValue(f"`tolerance` is {self.tolerance:g}; it is finite and not below 0.")

    def check(self, answer_type: AnswerType, labelled: bool) -> None:
        """Refuse rows and models that this guarantee cannot be about."""
        if self.risk_type == "accuracy" and not labelled:
            raise BadInput("Loss of accuracy needs labels, and these rows have none; guarantee disagreement instead.")
        if answer_type.needs_tolerance and self.tolerance is None:
            raise BadValue("A regression needs `tolerance=`: how far off a value may be, in its own units.")
        if not answer_type.needs_tolerance and self.tolerance is not None:
            raise BadValue("This model's answers are compared exactly; leave `tolerance=` out.")

    @property
    def level(self) -> float:
        """δ: how often the guarantee may be broken."""
        return 1 - self.confidence

    def p_value(self, losses: NDArray[Any]) -> float:
        """How well the losses fit a risk above the promised one."""
        if self.risk_type == "accuracy" and self.test == "binomial":
            return BOUNDS["binomial"](np.maximum(losses, 0), self.risk, self.level)
        if self.risk_type == "accuracy" and self.test == "hoeffding-bentkus":  # from −1 … 1 to 0 … 1
            return BOUNDS[self.test]((losses + 1) / 2, (self.risk + 1) / 2, self.level)
        return BOUNDS[self.test](losses, self.risk, self.level)

    def about(self, answer_type: AnswerType) -> str:
        """The guarantee in words."""
        of = answer_type.describe_risk(self.risk_type, self.tolerance)
        if self.reference is not None:
            of = of.replace("the full model", self.reference)
        return f"at most {100 * self.risk:g} % {of}"


@dataclass(frozen=True)
class Risk:
    """A guarantee about the rows of a trace."""

    guarantee: Guarantee
    trace: Trace

    def __post_init__(self) -> None:
        self.guarantee.check(self.trace.answer_type, self.trace.labels is not None)

    def at_every_exit(self) -> NDArray[Any]:
        """What rows lose if all of them leave at an exit, (rows, exits)."""
        trace, rows = self.trace, self.trace.rows
        numbers = [(np.full(rows, point.number), np.full(rows, point.layer)) for point in trace.points]
        each = [Replayed(*number, trace.answers_of(place)) for place, number in enumerate(numbers)]
        return np.stack([self.losses(one) for one in each], 1)

    def losses(self, replayed: Replayed) -> NDArray[Any]:
        """One per row, of rows that left somewhere."""
        answer_type, tolerance = self.trace.answer_type, self.guarantee.tolerance
        if self.guarantee.risk_type == "disagreement":
            return answer_type.differ(replayed.answers, self.trace.expected, tolerance).astype(np.int64)
        labels = np.asarray(self.trace.labels)
        early, full = (
            answer_type.wrong(answers, labels, tolerance) for answers in (replayed.answers, self.trace.expected)
        )
        return early - full
