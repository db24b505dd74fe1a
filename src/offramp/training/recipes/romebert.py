"""RomeBERT: one stage, the last exit teaches the others, and conflicting gradients are taken apart."""

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

FINAL_FIRST = ("mnli", "qqp")  # the tasks whose reference is the last exit's gradient in the original
REFERENCES = ("auto", "final", "early")


@dataclass(frozen=True)
class RomeBert(Distilling):
    """Self-distillation: ℓ_L + Σ (1 − γ) ℓ_i + γ T² KL(last ‖ exit i), all parameters together."""

    name: ClassVar[str] = "romebert-sd"
    paper: ClassVar[str] = "RomeBERT, 2021, arXiv:2101.09755"
    about: ClassVar[str] = "all together; the last exit teaches the others"

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One."""

        def loss(batch: BatchOutputs, step: int) -> Tensor:
            final, early = self._halves(batch)
            return final + early

        return (Stage("joint", loss),)

    def _halves(self, batch: BatchOutputs) -> tuple[Tensor, Tensor]:
        """The last exit's loss, and the early exits'."""
        from offramp.training.recipes.losses import last_exit

        return last_exit(batch), self.distillation(batch)


@dataclass(frozen=True)
class RomeBertProjected(RomeBert):
    """With gradient regularisation: of the two gradients one is the reference, and the other gives way to it."""

    name: ClassVar[str] = "romebert-sd-gr"
    about: ClassVar[str] = "romebert-sd, conflicting gradients of last and early exits projected"

    reference: str = option("auto", "whose gradient stays; auto: final for mnli and qqp, else early", REFERENCES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference not in REFERENCES:
            raise BadValue(f"reference is {self.reference!r}; say auto, final or early.")

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One, its loss in two parts."""
        (stage,) = super().stages(config, task)
        reference = self.reference
        if reference == "auto":
            reference = "final" if task in FINAL_FIRST else "early"

        def parts(batch: BatchOutputs) -> tuple[Tensor, Tensor]:
            final, early = self._halves(batch)
            return (final, early) if reference == "final" else (early, final)

        return (Stage(stage.name, stage.loss, parts=parts),)
