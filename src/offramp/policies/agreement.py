"""Exits that agree with those before them, or stay certain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from offramp.core.stepper import ExitOutput, ModelSpec
from offramp.errors import BadValue
from offramp.policies.policy import Memory, Policy, refuse_regression
from offramp.policies.spacing import SIZE, entropies
from offramp.policies.thresholds import Threshold, check_list, count, number, threshold_at, thresholds

__all__ = ["Patience", "PatienceConfidence", "Vote"]

TOLERANCES = (1e-3, 10.0)  # worth trying, in the units of the answer


@dataclass(frozen=True)
class Patience(Policy):
    """Leave once `patience` comparisons in a row agreed (PABEE, arXiv:2006.04152).

    An exit agrees with the one before on the class (multi-label: on the whole set of labels); in a
    regression their difference is below `tolerance`. A disagreement starts again at 0.
    """

    name: ClassVar[str] = "patience"
    example: ClassVar[str] = "patience:6"
    counts: ClassVar[bool] = True
    patience: int = 6
    tolerance: float | None = None

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """From all exits to one; where two answers agree within a tolerance, over that."""
        if model_spec.answer_type.needs_tolerance:
            patience = 2 if len(model_spec.exits) > 4 else 1  # comparisons that a shallow model has room for
            return [cls(patience, float(f"{one:.4g}")) for one in np.geomspace(*TOLERANCES, SIZE)]
        return [cls(count) for count in range(max(1, len(model_spec.exits) - 1), 0, -1)]

    @classmethod
    def from_count(cls, count: int) -> Policy:
        """So many comparisons."""
        return cls(count)

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

    def check(self, model_spec: ModelSpec) -> None:
        """Refuse a regression without a tolerance."""
        if model_spec.answer_type.needs_tolerance and self.tolerance is None:
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
    rising: ClassVar[bool | None] = True
    per_exit: ClassVar[bool] = True
    patience: int
    threshold: Threshold

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Certain at two exits in a row."""
        return [cls(2, one) for one in entropies(model_spec)]

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", count(self.name, "patience", self.patience))
        object.__setattr__(self, "threshold", thresholds(self.name, self.threshold, math.inf))

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Count each row's certain exits in a row."""
        certain = said.answer_type.entropy(said.logits.float()) < threshold_at(self.threshold, said.exit)
        streak = certain.long() if memory is None else torch.where(certain, memory["streak"] + 1, 0)
        return streak >= self.patience, {"streak": streak}

    def check(self, model_spec: ModelSpec) -> None:
        """Refuse regression and lists that do not fit."""
        check_list(self.name, self.threshold, model_spec.exits)
        refuse_regression(self.name, model_spec)


@dataclass(frozen=True)
class Vote(Policy):
    """Leave when a class has `threshold` votes, each exit having one, divided by (exits so far) ** `power`."""

    name: ClassVar[str] = "vote"
    example: ClassVar[str] = "vote:3"
    rising: ClassVar[bool | None] = False
    threshold: float = 3.0
    power: float = 0.0

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """From all votes to one."""
        return [cls(float(count)) for count in range(len(model_spec.exits), 0, -1)]

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", number(self.name, "threshold", self.threshold, 0))
        object.__setattr__(self, "power", number(self.name, "power", self.power, 0))

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Count each row's votes per class."""
        vote = torch.nn.functional.one_hot(said.logits.float().argmax(-1), said.logits.shape[-1])  # (rows, classes)
        votes = vote if memory is None else memory["votes"] + vote
        return votes.amax(-1) / said.exit**self.power >= self.threshold, {"votes": votes}

    def check(self, model_spec: ModelSpec) -> None:
        """Refuse anything but single-label classification."""
        if not model_spec.answer_type.is_one_class:
            raise BadValue(
                f"Policy 'vote' counts votes for one class; this model is a {model_spec.answer_type.title}. "
                "Use patience or learned."
            )
