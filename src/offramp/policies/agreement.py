"""Exits that agree with those before them, or stay certain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offramp.core.stepper import ExitOutput, Shape
from offramp.errors import BadValue
from offramp.policies.policy import Memory, Policy, refuse_regression
from offramp.policies.thresholds import Threshold, check_list, count, number, threshold_at, thresholds

__all__ = ["Patience", "PatienceConfidence", "Vote"]


@dataclass(frozen=True)
class Patience(Policy):
    """Leave once `patience` comparisons in a row agreed (PABEE, arXiv:2006.04152).

    An exit agrees with the one before on the class (multi-label: on the whole set of labels); in a
    regression their difference is below `tolerance`. A disagreement starts again at 0.
    """

    name: ClassVar[str] = "patience"
    example: ClassVar[str] = "patience:6"
    patience: int = 6
    tolerance: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", count(self.name, "patience", self.patience))
        if self.tolerance is not None:
            object.__setattr__(self, "tolerance", number(self.name, "tolerance", self.tolerance, 0))

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Count each row's agreements in a row."""
        choice = said.answer_type.choice(said.logits.float())  # (rows, n)
        if memory is None:  # the first exit has nothing to compare with
            streak = torch.zeros(len(choice), dtype=torch.long, device=choice.device)
        else:
            agrees = said.answer_type.agree(choice, memory["choice"], self.tolerance)
            streak = torch.where(agrees, memory["streak"] + 1, 0)
        return streak >= self.patience, {"choice": choice, "streak": streak}

    def check(self, shape: Shape) -> None:
        """Refuse a regression without a tolerance."""
        if shape.answer_type.is_regression and self.tolerance is None:
            raise BadValue(
                "patience on a regression needs a tolerance: how close two exits must be to agree, "
                "in the units of the answer. Write patience:3:0.1, for instance."
            )


@dataclass(frozen=True)
class PatienceConfidence(Policy):
    """Leave once the entropy was below `threshold` at `patience` exits in a row (PCEE).

    Certainty has to last; the exits need not agree on the class.
    """

    name: ClassVar[str] = "patience-confidence"
    example: ClassVar[str] = "patience-confidence:2:0.3"
    patience: int
    threshold: Threshold

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", count(self.name, "patience", self.patience))
        object.__setattr__(self, "threshold", thresholds(self.name, self.threshold, math.inf))

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Count each row's certain exits in a row."""
        certain = said.answer_type.entropy(said.logits.float()) < threshold_at(self.threshold, said.exit)
        streak = certain.long() if memory is None else torch.where(certain, memory["streak"] + 1, 0)
        return streak >= self.patience, {"streak": streak}

    def check(self, shape: Shape) -> None:
        """Refuse regression and lists that do not fit."""
        check_list(self.name, self.threshold, shape.exits)
        refuse_regression(self.name, shape)


@dataclass(frozen=True)
class Vote(Policy):
    """Leave when a class has `threshold` votes, each exit having one, divided by (exits so far) ** `power`."""

    name: ClassVar[str] = "vote"
    example: ClassVar[str] = "vote:3"
    threshold: float = 3.0
    power: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", number(self.name, "threshold", self.threshold, 0))
        object.__setattr__(self, "power", number(self.name, "power", self.power, 0))

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Count each row's votes per class."""
        vote = torch.nn.functional.one_hot(said.logits.float().argmax(-1), said.logits.shape[-1])  # (rows, classes)
        votes = vote if memory is None else memory["votes"] + vote
        return votes.amax(-1) / said.exit**self.power >= self.threshold, {"votes": votes}

    def check(self, shape: Shape) -> None:
        """Refuse anything but single-label classification."""
        if not shape.answer_type.is_one_class:
            raise BadValue(
                f"Policy 'vote' counts votes for one class; this model is a {shape.answer_type.title}. "
                "Use patience or learned."
            )
