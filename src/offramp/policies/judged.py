"""A judge of who may leave: per exit, how likely its answer differs from the one that is to be kept.

The same certainty means different things at different exits. A logistic curve per exit, fitted on rows of their own,
turns it into a risk, and one threshold on that risk serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from offramp.core.stepper import ExitOutput, Shape
from offramp.errors import BadValue
from offramp.policies.policy import Memory, Policy
from offramp.policies.thresholds import number

__all__ = ["NO_JUDGE", "Judged", "sureness"]

LIKELIEST = 1e-6  # odds beyond a million to one are all alike
NO_JUDGE = "Policy 'risk' needs a judge, and this model has none; fit one: offramp calibrate MODEL --policy risk"
NEAREST = 1e-4  # of two values, in the units of the answer


def sureness(said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
    """What the judge reads, (rows,), and what it remembers.

    The log-odds of the exit's answer; a regression has none, so there it is how near the value is to the exit's
    before (minus the logarithm of the distance; the first exit has nothing to compare with).
    """
    logits = said.logits.float()
    if not said.answer_type.is_regression:
        return torch.logit(said.answer_type.confidence(logits), eps=LIKELIEST), {}
    value = logits[:, 0]
    if memory is None:
        return torch.zeros_like(value), {"value": value}
    return -torch.log((value - memory["value"]).abs() + NEAREST), {"value": value}


@dataclass(frozen=True)
class Judged(Policy):
    """Leave when the judge's risk is below `threshold`: 1 / (1 + exp(slope · sureness − offset)), strictly.

    `calibrate --policy risk` and `tune --policy risk` fit a judge and write it into the model's policy, where a
    threshold that is given without one finds it.
    """

    name: ClassVar[str] = "risk"
    example: ClassVar[str] = "risk:0.02"
    threshold: float
    offsets: tuple[float, ...] = ()  # one per early exit
    slopes: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", number(self.name, "threshold", self.threshold, 0, 1))
        for field in ("offsets", "slopes"):
            given = getattr(self, field)
            values = given if isinstance(given, list | tuple) else [given]
            object.__setattr__(self, field, tuple(number(self.name, field, one, -1e6, 1e6) for one in values))

    @property
    def is_fitted(self) -> bool:
        """Whether it has a judge."""
        return bool(self.offsets)

    def fitted_like(self, other: Policy) -> Judged:
        """The same threshold with another's judge."""
        if self.is_fitted or not isinstance(other, Judged):
            return self
        return replace(self, offsets=other.offsets, slopes=other.slopes)

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare each row's risk with the threshold."""
        sure, memory = sureness(said, memory)
        offset, slope = self.offsets[said.exit - 1], self.slopes[said.exit - 1]
        return torch.sigmoid(offset - slope * sure) < self.threshold, memory

    def check(self, shape: Shape) -> None:
        """Refuse spans, a policy without a judge, and a judge of other exits."""
        if shape.answer_type.is_span:
            raise BadValue(
                "Policy 'risk' judges one answer per text, and a question has one per window; use confidence."
            )
        if not self.is_fitted:
            raise BadValue(NO_JUDGE)
        early = len(shape.exits) - 1
        if {len(self.offsets), len(self.slopes)} != {early}:
            raise BadValue(
                f"risk: a judge of {len(self.offsets)} and {len(self.slopes)} early exits, and this model has {early}; "
                "fit it again with `offramp calibrate MODEL --policy risk`."
            )
