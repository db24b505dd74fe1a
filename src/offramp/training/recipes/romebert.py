"""RomeBERT: one stage in which the last exit teaches the early exits, optionally with projected gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from offramp.errors import BadValue
from offramp.training.recipes.distilling import Distilling
from offramp.training.recipes.recipe import Stage, option

if TYPE_CHECKING:
    from torch import Tensor

    from offramp.model.config import AdaptiveConfig
    from offramp.training.recipes.losses import BatchOutputs

__all__ = ["RomeBert", "RomeBertProjected"]

FINAL_REFERENCE_TASKS = ("mnli", "qqp")  # where the original uses the last exit's gradient as the reference
REFERENCES = ("auto", "final", "early")


@dataclass(frozen=True)
class RomeBert(Distilling):
    """Self-distillation: ℓ_L + Σ (1 − γ) ℓ_i + γ T² KL(last ‖ exit i), training all parameters."""

    name: ClassVar[str] = "romebert-sd"
    paper: ClassVar[str] = "RomeBERT, 2021, arXiv:2101.09755"
    description: ClassVar[str] = "backbone and exits together; the early exits are distilled from the last exit"

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return a single stage."""

        def loss(batch: BatchOutputs, step: int) -> Tensor:
            final, early = self._final_and_early_loss(batch)
            return final + early

        return (Stage(self.name, loss),)

    def _final_and_early_loss(self, batch: BatchOutputs) -> tuple[Tensor, Tensor]:
        from offramp.training.recipes.losses import last_exit

        return last_exit(batch), self.distillation(batch)


@dataclass(frozen=True)
class RomeBertProjected(RomeBert):
    """Self-distillation with gradient regularization: conflicting gradients are projected onto a reference."""

    name: ClassVar[str] = "romebert-sd-gr"
    description: ClassVar[str] = "romebert-sd, with conflicting gradients of the last and the early exits projected"

    reference: str = option(
        "auto", "gradient that is not projected; auto means final for mnli and qqp, else early", REFERENCES
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference not in REFERENCES:
            raise BadValue(f"`reference` must be auto, final or early, got {self.reference!r}.")

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return a single stage with its loss in two parts."""
        (stage,) = super().stages(config, task)
        reference = self.reference
        if reference == "auto":
            reference = "final" if task in FINAL_REFERENCE_TASKS else "early"

        def loss_parts(batch: BatchOutputs) -> tuple[Tensor, Tensor]:
            final, early = self._final_and_early_loss(batch)
            return (final, early) if reference == "final" else (early, final)

        return (Stage(stage.name, stage.loss, loss_parts=loss_parts),)
