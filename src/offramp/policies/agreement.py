"""Policies that look at several exits in a row: agreement, lasting certainty, votes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from offramp.core.stepper import ExitOutput, ModelSpec
from offramp.errors import BadValue
from offramp.policies.policy import Memory, Policy, reject_regression
from offramp.policies.spacing import SIZE, entropies
from offramp.policies.thresholds import Threshold, check_thresholds, count, number, threshold_at, thresholds

__all__ = ["Patience", "PatienceConfidence", "Vote"]

TOLERANCES = (1e-3, 10.0)  # range of candidates, in the units of the prediction


@dataclass(frozen=True)
class Patience(Policy):
    """Exit once `patience` comparisons in a row agreed (PABEE, arXiv:2006.04152).

    Two consecutive exits agree if they predict the same class (multi-label: the same set of labels; regression: values
    that differ by less than `tolerance`). A disagreement resets the count to 0.

    Attributes:
        patience: number of comparisons in a row that must agree.
        tolerance: for a regression, the difference below which two values agree.
    """

    name: ClassVar[str] = "patience"
    example: ClassVar[str] = "patience:6"
    counts: ClassVar[bool] = True
    patience: int = 6
    tolerance: float | None = None

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Return patience values from all exits to 1; for a regression, tolerances."""
        if model_spec.answer_type.needs_tolerance:
            patience = 2 if len(model_spec.exits) > 4 else 1  # a shallow model has few comparisons
            return [cls(patience, float(f"{tolerance:.4g}")) for tolerance in np.geomspace(*TOLERANCES, SIZE)]
        return [cls(count) for count in range(max(1, len(model_spec.exits) - 1), 0, -1)]

    @classmethod
    def from_count(cls, count: int) -> Policy:
        """Return the policy with this patience."""
        return cls(count)

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", count(self.name, "patience", self.patience))
        if self.tolerance is not None:
            object.__setattr__(self, "tolerance", number(self.name, "tolerance", self.tolerance, 0))

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Count the consecutive agreements of each row."""
        choice = output.answer_type.choice(output.logits.float())  # (rows, n)
        if memory is None:  # nothing to compare with
            streak = torch.zeros(len(choice), dtype=torch.long, device=choice.device)
        else:
            agrees = output.answer_type.agree(choice, memory["choice"], self.tolerance)
            streak = torch.where(agrees, memory["streak"] + 1, 0)
        return streak >= self.patience, {"choice": choice, "streak": streak}

    def check(self, model_spec: ModelSpec) -> None:
        """Raise for a regression without a tolerance."""
        if model_spec.answer_type.compares_rows:
            raise BadValue("Policy 'patience' does not support rankings. Use top-k.")
        if model_spec.answer_type.needs_tolerance and self.tolerance is None:
            raise BadValue(
                "Policy 'patience' needs a tolerance for a regression: the difference below which two exits agree, "
                "as in patience:3:0.1."
            )


@dataclass(frozen=True)
class PatienceConfidence(Policy):
    """Exit once the entropy was below `threshold` at `patience` exits in a row (PCEE).

    The exits need not agree on the class.

    Attributes:
        patience: number of exits in a row.
        threshold: entropy in nats, or one per exit.
    """

    name: ClassVar[str] = "patience-confidence"
    example: ClassVar[str] = "patience-confidence:2:0.3"
    rising: ClassVar[bool | None] = True
    per_exit: ClassVar[bool] = True
    patience: int
    threshold: Threshold

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Return entropy thresholds for two exits in a row."""
        return [cls(2, threshold) for threshold in entropies(model_spec)]

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", count(self.name, "patience", self.patience))
        object.__setattr__(self, "threshold", thresholds(self.name, self.threshold, math.inf))

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Count the consecutive certain exits of each row."""
        certain = output.answer_type.entropy(output.logits.float()) < threshold_at(self.threshold, output.exit)
        streak = certain.long() if memory is None else torch.where(certain, memory["streak"] + 1, 0)
        return streak >= self.patience, {"streak": streak}

    def check(self, model_spec: ModelSpec) -> None:
        """Raise for a regression, or if the number of thresholds does not match the exits."""
        check_thresholds(self.name, self.threshold, model_spec.exits)
        reject_regression(self.name, model_spec)


@dataclass(frozen=True)
class Vote(Policy):
    """Exit once a class has `threshold` votes, one per exit, divided by (number of exits) ** `power`.

    Attributes:
        threshold: number of votes.
        power: exponent of the number of exits; 0 counts plain votes.
    """

    name: ClassVar[str] = "vote"
    example: ClassVar[str] = "vote:3"
    rising: ClassVar[bool | None] = False
    threshold: float = 3.0
    power: float = 0.0

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Return thresholds from all votes to 1."""
        return [cls(float(count)) for count in range(len(model_spec.exits), 0, -1)]

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", number(self.name, "threshold", self.threshold, 0))
        object.__setattr__(self, "power", number(self.name, "power", self.power, 0))

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Count the votes of each row per class."""
        vote = torch.nn.functional.one_hot(output.logits.float().argmax(-1), output.logits.shape[-1])  # (rows, classes)
        votes = vote if memory is None else memory["votes"] + vote
        return votes.amax(-1) / output.exit**self.power >= self.threshold, {"votes": votes}

    def check(self, model_spec: ModelSpec) -> None:
        """Raise unless the model is a single-label classifier."""
        if not model_spec.answer_type.is_single_class:
            raise BadValue(
                f"Policy 'vote' needs a single-label classifier, but this model does {model_spec.answer_type.title}; "
                "use patience or learned."
            )
