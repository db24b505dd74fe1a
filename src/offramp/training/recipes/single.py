"""Baselines without early exits: the full encoder, or its first layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from offramp.training.recipes.recipe import PublishedSettings, Recipe, Stage

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = ["Plain", "Static"]


@dataclass(frozen=True)
class Plain(Recipe):
    """Ordinary fine-tuning with a single exit after the last layer."""

    name: ClassVar[str] = "plain"
    description: ClassVar[str] = "baseline: ordinary fine-tuning, with a single exit after the last layer"
    published: ClassVar[PublishedSettings] = PublishedSettings(3, 32, 5e-5, 0.01, 0.1)
    single_exit: ClassVar[bool] = True

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return a single stage."""
        from offramp.training.recipes.losses import last_exit

        return (Stage("plain", lambda batch, step: last_exit(batch), select_by="last"),)


@dataclass(frozen=True)
class Static(Plain):
    """A shallower model: the first k layers (`--num-layers k`) with a single exit after them."""

    name: ClassVar[str] = "static"
    paper: ClassVar[str] = "ElasticBERT, NAACL 2022, arXiv:2110.07038"
    description: ClassVar[str] = "baseline: the first --num-layers layers, with a single exit"
    published: ClassVar[PublishedSettings] = PublishedSettings(10, 32, 2e-5, 0.1, 0.06)
