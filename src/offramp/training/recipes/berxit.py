"""BERxiT: alternating training, learned exits, and self-distillation."""

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
    """Alternate between the last exit alone and all exits from batch to batch; epochs start with the last exit."""

    name: ClassVar[str] = "berxit-alternating"
    paper: ClassVar[str] = PAPER
    description: ClassVar[str] = "alternating batches: the last exit alone, then all exits"

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return a single stage."""
        from offramp.training.recipes.losses import joint, last_exit

        return (Stage("alternating", lambda batch, step: (joint if step % 2 else last_exit)(batch)),)


@dataclass(frozen=True)
class LearnedExits(Recipe):
    """Alternating with the learning-to-exit module; the original omits the last exit in odd batches."""

    name: ClassVar[str] = "berxit-lte"
    paper: ClassVar[str] = PAPER
    description: ClassVar[str] = (
        "berxit-alternating, plus a module that predicts how wrong each exit is (for the policy `learned`)"
    )
    lte: ClassVar[bool] = True
    policy: ClassVar[str] = "learned"

    with_last: bool = option(False, "train the last exit in odd batches too")

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return a single stage."""
        from offramp.training.recipes.losses import early_exits, joint, last_exit, lte

        def loss(batch: BatchOutputs, step: int) -> Tensor:
            odd = joint if self.with_last else early_exits
            return (odd if step % 2 else last_exit)(batch) + lte(batch)

        return (Stage("alternating", loss),)


@dataclass(frozen=True)
class SelfDistillation(Recipe):
    """The sum of all losses, with the last exit's probabilities as additional soft labels.

    The original sums the soft-label loss over the rows of a batch, eight in its scripts. Here it is scaled to the
    same weight at any batch size. `faithful` uses the plain sum, which dominates the labels in large batches.
    """

    name: ClassVar[str] = "self-distillation"
    paper: ClassVar[str] = PAPER
    description: ClassVar[str] = "joint, with the last exit's probabilities as additional soft labels"
    single_label_only: ClassVar[bool] = True

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return a single stage."""
        from offramp.training.recipes.losses import joint, summed_soft_labels

        size = None if self.faithful else self.published.batch_size
        return (Stage("joint", lambda batch, step: joint(batch) + summed_soft_labels(batch, size)),)
