"""BERxiT: the last exit and all exits in turn, learned exits, and distillation summed over rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offramp.config import AdaptiveConfig
from offramp.recipes.losses import Outcome, early_exits, joint, last_exit, lte, summed_soft_labels
from offramp.recipes.recipe import Recipe, Stage
from offramp.stepper import Problem

__all__ = ["Alternating", "LearnedExits", "SelfDistillation"]

PAPER = "BERxiT, EACL 2021, aclanthology.org/2021.eacl-main.8"


@dataclass(frozen=True)
class Alternating(Recipe):
    """Batches in turn: one for the last exit alone, one for all exits; each epoch starts with the last exit."""

    name: ClassVar[str] = "berxit-alternating"
    paper: ClassVar[str] = PAPER
    about: ClassVar[str] = "batches in turn: the last exit alone, then all exits"

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One."""
        return (Stage("alternating", lambda outcome, step: (joint if step % 2 else last_exit)(outcome)),)


@dataclass(frozen=True)
class LearnedExits(Recipe):
    """Alternating with the learning-to-exit module; in the original the odd batches leave out the last exit."""

    name: ClassVar[str] = "berxit-lte"
    paper: ClassVar[str] = PAPER
    about: ClassVar[str] = "alternating, and a module that learns how likely each exit is wrong (policy learned)"
    lte: ClassVar[bool] = True

    with_last: bool = field(default=False, metadata={"help": "odd batches train the last exit too"})

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One."""

        def loss(outcome: Outcome, step: int) -> Tensor:
            odd = joint if self.with_last else early_exits
            return (odd if step % 2 else last_exit)(outcome) + lte(outcome)

        return (Stage("alternating", loss),)


@dataclass(frozen=True)
class SelfDistillation(Recipe):
    """The plain sum, and the last exit's softmax as a second label.

    The original sums the second over a batch's rows, eight in its scripts; it weighs as much here in batches of any
    size. Faithful is the sum itself, under which labels hardly count in a large batch.
    """

    name: ClassVar[str] = "self-distillation"
    paper: ClassVar[str] = PAPER
    about: ClassVar[str] = "joint, the last exit's probabilities as labels too"
    problems: ClassVar[tuple[Problem, ...]] = (Problem.SINGLE_LABEL,)

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One."""
        batch = None if self.faithful else self.published.batch_size
        return (Stage("joint", lambda outcome, step: joint(outcome) + summed_soft_labels(outcome, batch)),)
