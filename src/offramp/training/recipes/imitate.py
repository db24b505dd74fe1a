"""Early exits that imitate a fine-tuned model, which itself is not changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from offramp.errors import BadValue
from offramp.training.recipes.recipe import PublishedSettings, Recipe, Stage, option
from offramp.training.recipes.two_stage import is_early_exit

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = ["Imitate"]


@dataclass(frozen=True)
class Imitate(Recipe):
    """The recipe of `offramp adapt`: soft predictions instead of labels, on encoder states that are computed once."""

    name: ClassVar[str] = "imitate"
    description: ClassVar[str] = "early exits on a frozen fine-tuned model learn its predictions; labels are optional"
    published: ClassVar[PublishedSettings] = PublishedSettings(3, 32, 1e-3, 0.01, 0.06, head="attention")

    teacher: str = option("", "another model to imitate (default: the model itself)")
    label_weight: float = option(0.0, "weight of the labels in the loss, from 0 to 1, if there are labels")

    def __post_init__(self) -> None:
        if not 0 <= self.label_weight <= 1:
            raise BadValue(f"`label_weight` must be between 0 and 1, got {self.label_weight}.")

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return a single stage that trains on encoder states."""
        last = config.num_layers

        def loss(batch: Any, step: int) -> Any:
            raise AssertionError("stages with from_states=True have their own training loop")

        return (Stage("imitate", loss, lambda name: is_early_exit(name, last), freeze_others=True, from_states=True),)
