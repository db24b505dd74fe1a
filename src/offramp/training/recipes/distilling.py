"""The options of recipes whose early exits learn from the last one (RomeBERT, arXiv:2101.09755)."""

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
    """(1 − γ) times the early exits' own losses, γ times what the last exit asks of them."""

    gamma: float = option(0.9, "the share of distillation in an exit's loss")
    temperature: float = option(3.0, "softens teacher and exits alike")
    reduction: str = option(
        "elements", "the KL's mean, over rows × classes as the original or over rows", ("elements", "rows")
    )

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise BadValue(f"gamma is {self.gamma}; it is a share from 0 to 1.")
        if not self.temperature > 0:
            raise BadValue(f"temperature is {self.temperature}; it is above 0.")
        if self.reduction not in ("elements", "rows"):
            raise BadValue(f"reduction is {self.reduction!r}; say elements or rows.")

    def distillation(self, batch: BatchOutputs) -> Tensor:
        """The early exits' part of the loss."""
        from offramp.training.recipes.losses import distillation

        return distillation(batch, self.gamma, self.temperature, self.reduction)
