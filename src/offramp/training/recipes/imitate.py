"""Early exits that answer as a fine-tuned model does, which itself stays as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from offramp.errors import BadValue
from offramp.training.recipes.recipe import Published, Recipe, Stage, option
from offramp.training.recipes.two_stage import is_early

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = ["Imitate"]


@dataclass(frozen=True)
class Imitate(Recipe):
    """What `offramp adapt` trains with: soft answers instead of labels, from the encoder's states, computed once."""

    name: ClassVar[str] = "imitate"
    about: ClassVar[str] = "early exits of a fine-tuned model, which is frozen, learn its answers; labels are optional"
    published: ClassVar[Published] = Published(3, 32, 1e-3, 0.01, 0.06, head="attention")

    teacher: str = option("", "another model whose answers are imitated (the model's own)")
    label_weight: float = option(0.0, "the share of the labels in the loss, where there are some")

    def __post_init__(self) -> None:
        if not 0 <= self.label_weight <= 1:
            raise BadValue(f"label_weight is {self.label_weight}; it is a share from 0 to 1.")

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One, from states."""
        last = config.num_layers

        def loss(batch: Any, step: int) -> Any:
            raise AssertionError("heads that learn from states have a loop of their own")

        return (Stage("imitate", loss, lambda name: is_early(name, last), freezes=True, from_states=True),)
