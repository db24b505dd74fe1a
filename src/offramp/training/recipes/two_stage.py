"""DeeBERT: the model first, then the exits on the frozen model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from offramp.training.recipes.distilling import Distilling
from offramp.training.recipes.recipe import Published, Recipe, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from offramp.model.config import AdaptiveConfig
    from offramp.training.recipes.losses import BatchOutputs

__all__ = ["DeeBert", "DeeBertSelfDistilled"]


@dataclass(frozen=True)
class DeeBert(Recipe):
    """Fine-tune the full model, freeze it, train the early exits.

    In the original "frozen" means "not in the optimiser": dropout stays on in the backbone, and its gradients count
    when the norm is clipped. `faithful` does the same.
    """

    name: ClassVar[str] = "deebert"
    paper: ClassVar[str] = "DeeBERT, ACL 2020, arXiv:2004.12993"
    about: ClassVar[str] = "two stages: the full model, then the early exits on the frozen model"

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """The model, then the exits."""
        from offramp.training.recipes.losses import last_exit

        last = config.num_layers
        only_early_share = config.exit_specs[-1].head != "shared"

        def early(name: str) -> bool:
            return is_early(name, last) or (only_early_share and name.startswith("exits.shared."))

        return (
            Stage(
                "backbone", lambda batch, _: last_exit(batch), lambda name: not early(name), with_risk_model_of="last"
            ),
            Stage("exits", lambda batch, _: self.second(batch), early, freezes=not self.faithful),
        )

    def second(self, batch: BatchOutputs) -> Tensor:
        """The second stage's loss."""
        from offramp.training.recipes.losses import early_exits

        return early_exits(batch)


@dataclass(frozen=True)
class DeeBertSelfDistilled(DeeBert, Distilling):
    """DeeBERT whose early exits also learn from the last one: the baseline of the RomeBERT paper."""

    name: ClassVar[str] = "deebert-sd"
    paper: ClassVar[str] = "RomeBERT, 2021, arXiv:2101.09755 (its baseline)"
    about: ClassVar[str] = "deebert, the exits taught by the last one as well"
    published: ClassVar[Published] = Published()

    def second(self, batch: BatchOutputs) -> Tensor:
        """The second stage's loss."""
        return self.distillation(batch)


def is_early(name: str, last: int) -> bool:
    """Whether a parameter belongs to an early exit (the untrained ramp on the last layer is one)."""
    kind, _, rest = name.partition(".")
    layer = rest.split(".")[0]
    return kind == "exits" and layer.isdigit() and (int(layer) < last or rest.startswith(f"{layer}.ramp."))
