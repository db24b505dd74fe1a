"""Baselines: the whole encoder, or its first layers, with one answer at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from offramp.training.recipes.recipe import Published, Recipe, Stage

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = ["Plain", "Static"]


@dataclass(frozen=True)
class Plain(Recipe):
    """Ordinary fine-tuning."""

    name: ClassVar[str] = "plain"
    about: ClassVar[str] = "the ordinary baseline: one exit, behind the last layer"
    published: ClassVar[Published] = Published(3, 32, 5e-5, 0.01, 0.1)
    only_last: ClassVar[bool] = True

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One."""
        from offramp.training.recipes.losses import last_exit

        return (Stage("plain", lambda batch, step: last_exit(batch), with_risk_model_of="last"),)


@dataclass(frozen=True)
class Static(Plain):
    """A shallower model: the first k layers (`--num-layers k`) and one exit behind them."""

    name: ClassVar[str] = "static"
    paper: ClassVar[str] = "ElasticBERT, NAACL 2022, arXiv:2110.07038"
    about: ClassVar[str] = "the first --num-layers layers, one exit"
    published: ClassVar[Published] = Published(10, 32, 2e-5, 0.1, 0.06)
