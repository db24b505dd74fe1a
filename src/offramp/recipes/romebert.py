"""RomeBERT: one stage, the last exit teaches the others, and conflicting gradients are taken apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from offramp.config import AdaptiveConfig
from offramp.errors import BadValue
from offramp.recipes.losses import Outcome, check_distillation, distillation, last_exit
from offramp.recipes.recipe import Recipe, Stage

__all__ = ["RomeBert", "RomeBertProjected"]

FINAL_FIRST = ("mnli", "qqp")  # the tasks whose reference is the last exit's gradient in the original


@dataclass(frozen=True)
class RomeBert(Recipe):
    """Self-distillation: ℓ_L + Σ (1 − γ) ℓ_i + γ T² KL(last ‖ exit i), all parameters together."""

    name: ClassVar[str] = "romebert-sd"
    paper: ClassVar[str] = "RomeBERT, 2021, arXiv:2101.09755"
    about: ClassVar[str] = "all together; the last exit teaches the others"

    gamma: float = field(default=0.9, metadata={"help": "the share of distillation in an exit's loss"})
    temperature: float = field(default=3.0, metadata={"help": "softens teacher and exits alike"})
    reduction: str = field(default="elements", metadata={"help": "KL averaged over rows × classes, or over rows"})

    def __post_init__(self) -> None:
        check_distillation(self.gamma, self.temperature, self.reduction)

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One."""

        def loss(outcome: Outcome, step: int) -> Tensor:
            final, early = self._halves(outcome)
            return final + early

        return (Stage("joint", loss),)

    def _halves(self, outcome: Outcome) -> tuple[Tensor, Tensor]:
        """The last exit's loss, and the early exits'."""
        return last_exit(outcome), distillation(outcome, self.gamma, self.temperature, self.reduction)


@dataclass(frozen=True)
class RomeBertProjected(RomeBert):
    """With gradient regularisation: of the two gradients one is the reference, and the other gives way to it."""

    name: ClassVar[str] = "romebert-sd-gr"
    about: ClassVar[str] = "romebert-sd, conflicting gradients of last and early exits projected"

    reference: str = field(
        default="auto", metadata={"help": "whose gradient stays: final, early, auto (final for mnli and qqp)"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference not in ("auto", "final", "early"):
            raise BadValue(f"reference is {self.reference!r}; say auto, final or early.")

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One, its loss in two parts."""
        (stage,) = super().stages(config, task)
        reference = self.reference
        if reference == "auto":
            reference = "final" if task in FINAL_FIRST else "early"

        def parts(outcome: Outcome) -> tuple[Tensor, Tensor]:
            final, early = self._halves(outcome)
            return (final, early) if reference == "final" else (early, final)

        return (Stage(stage.name, stage.loss, parts=parts),)
