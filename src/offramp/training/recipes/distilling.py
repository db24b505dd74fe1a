"""Options of recipes whose early exits are distilled from the last exit (RomeBERT, arXiv:2101.09755)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offramp.errors import BadValue
from offramp.training.recipes.recipe import Recipe, option

if TYPE_CHECKING:
    from torch import Tensor

    from offramp.training.recipes.losses import BatchOutputs

__all__ = ["Distilling"]


@dataclass(frozen=True)
class Distilling(Recipe):
    """(1 − γ) times the early exits' losses on the labels plus γ times their distillation loss."""

    gamma: float = option(0.9, "weight of distillation in an early exit's loss, from 0 to 1")
    temperature: float = option(3.0, "distillation temperature, of teacher and students")
    reduction: str = option(
        "elements", "average the KL over rows × classes (as the original) or over rows", ("elements", "rows")
    )

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise BadValue(f"`gamma` must be between 0 and 1, got {self.gamma}.")
        if not self.temperature > 0:
            raise BadValue(f"`temperature` must be greater than 0, got {self.temperature}.")
        if self.reduction not in ("elements", "rows"):
            raise BadValue(f"`reduction` must be elements or rows, got {self.reduction!r}.")

    def distillation(self, batch: BatchOutputs) -> Tensor:
        """Return the loss of the early exits."""
        from offramp.training.recipes.losses import distillation

        return distillation(batch, self.gamma, self.temperature, self.reduction)
