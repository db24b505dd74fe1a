"""BERxiT: the last exit and all exits in turn, learned exits, and distillation summed over rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from offramp.training.recipes.recipe import Recipe, Stage, option

if TYPE_CHECKING:
    from torch import Tensor

    from offramp.model.config import AdaptiveConfig
    from offramp.training.recipes.losses import BatchOutputs

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
        from offramp.training.recipes.losses import joint, last_exit

        return (Stage("alternating", lambda batch, step: (joint if step % 2 else last_exit)(batch)),)


@dataclass(frozen=True)
class LearnedExits(Recipe):
    """Alternating with the learning-to-exit module; in the original the odd batches leave out the last exit."""

    name: ClassVar[str] = "berxit-lte"
    paper: ClassVar[str] = PAPER
    about: ClassVar[str] = "alternating, and a module that learns how likely each exit is wrong (policy learned)"
    lte: ClassVar[bool] = True

    with_last: bool = option(False, "odd batches train the last exit too")

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One."""
        from offramp.training.recipes.losses import early_exits, joint, last_exit, lte

        def loss(batch: BatchOutputs, step: int) -> Tensor:
            odd = joint if self.with_last else early_exits
            return (odd if step % 2 else last_exit)(batch) + lte(batch)

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
    needs_classes: ClassVar[bool] = True

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One."""
        from offramp.training.recipes.losses import joint, summed_soft_labels

        size = None if self.faithful else self.published.batch_size
        return (Stage("joint", lambda batch, step: joint(batch) + summed_soft_labels(batch, size)),)
