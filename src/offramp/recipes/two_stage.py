"""DeeBERT: the model first, then the exits on the frozen model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from offramp.config import AdaptiveConfig
from offramp.recipes.losses import check_distillation, distillation, early_exits, last_exit
from offramp.recipes.recipe import Loss, Published, Recipe, Stage

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
        last = config.num_layers

        def early(name: str) -> bool:
            return is_early(name, last)

        return (
            Stage("backbone", lambda o, _: last_exit(o), lambda name: not early(name), judged_by="last"),
            Stage("exits", self._second(), early, freezes=not self.faithful),
        )

    def _second(self) -> Loss:
        return lambda outcome, step: early_exits(outcome)


@dataclass(frozen=True)
class DeeBertSelfDistilled(DeeBert):
    """DeeBERT whose early exits also learn from the last one: the baseline of the RomeBERT paper."""

    name: ClassVar[str] = "deebert-sd"
    paper: ClassVar[str] = "RomeBERT, 2021, arXiv:2101.09755 (its baseline)"
    about: ClassVar[str] = "deebert, the exits taught by the last one as well"
    published: ClassVar[Published] = Published()

    gamma: float = field(default=0.9, metadata={"help": "the share of distillation in an exit's loss"})
    temperature: float = field(default=3.0, metadata={"help": "softens teacher and exits alike"})
    reduction: str = field(default="elements", metadata={"help": "KL averaged over rows × classes, or over rows"})

    def __post_init__(self) -> None:
        check_distillation(self.gamma, self.temperature, self.reduction)

    def _second(self) -> Loss:
        return lambda outcome, step: distillation(outcome, self.gamma, self.temperature, self.reduction)


def is_early(name: str, last: int) -> bool:
    """Whether a parameter belongs to an early exit (the untrained ramp on the last layer is one)."""
    kind, _, rest = name.partition(".")
    layer = rest.split(".")[0]
    return kind == "exits" and layer.isdigit() and (int(layer) < last or rest.startswith(f"{layer}.ramp."))
