"""DeeBERT: first the full model, then the early exits on the frozen model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from offramp.training.recipes.distilling import Distilling
from offramp.training.recipes.recipe import PublishedSettings, Recipe, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from offramp.model.config import AdaptiveConfig
    from offramp.training.recipes.losses import BatchOutputs

__all__ = ["DeeBert", "DeeBertSelfDistilled"]


@dataclass(frozen=True)
class DeeBert(Recipe):
    """Fine-tune the full model, freeze it, then train the early exits.

    In the original, frozen only means absent from the optimizer: dropout stays active in the backbone, and its
    gradients count when the norm is clipped. `faithful` does the same.
    """

    name: ClassVar[str] = "deebert"
    paper: ClassVar[str] = "DeeBERT, ACL 2020, arXiv:2004.12993"
    description: ClassVar[str] = "two stages: the full model, then the early exits on the frozen model"

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return the stage of the full model, then that of the early exits."""
        from offramp.training.recipes.losses import last_exit

        last = config.num_layers
        shared_is_early = config.exit_specs[-1].head != "shared"  # the last exit does not use the shared pooler

        def is_early(name: str) -> bool:
            return is_early_exit(name, last) or (shared_is_early and name.startswith("exits.shared."))

        return (
            Stage("backbone", lambda batch, _: last_exit(batch), lambda name: not is_early(name), select_by="last"),
            Stage("exits", lambda batch, _: self.exit_loss(batch), is_early, freeze_others=not self.faithful),
        )

    def exit_loss(self, batch: BatchOutputs) -> Tensor:
        """Return the loss of the second stage."""
        from offramp.training.recipes.losses import early_exits

        return early_exits(batch)


@dataclass(frozen=True)
class DeeBertSelfDistilled(DeeBert, Distilling):
    """DeeBERT whose early exits also learn from the last exit: the baseline of the RomeBERT paper."""

    name: ClassVar[str] = "deebert-sd"
    paper: ClassVar[str] = "RomeBERT, 2021, arXiv:2101.09755 (its baseline)"
    description: ClassVar[str] = "deebert, with early exits also distilled from the last exit"
    published: ClassVar[PublishedSettings] = PublishedSettings()

    def exit_loss(self, batch: BatchOutputs) -> Tensor:
        """Return the loss of the second stage."""
        return self.distillation(batch)


def is_early_exit(name: str, last: int) -> bool:
    """Whether a parameter belongs to an early exit; the untrained ramp on the last layer counts as one."""
    module, _, rest = name.partition(".")
    layer = rest.split(".")[0]
    return module == "exits" and layer.isdigit() and (int(layer) < last or rest.startswith(f"{layer}.ramp."))
