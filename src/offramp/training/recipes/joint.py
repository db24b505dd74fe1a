"""Joint training of the backbone and all exits: plain sum, PABEE, ElasticBERT, and mixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from offramp.training.recipes.recipe import PublishedSettings, Recipe, Stage

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = ["GradientEquilibrium", "Joint", "Mixed", "Pabee"]


@dataclass(frozen=True)
class Joint(Recipe):
    """The sum of the losses of all exits."""

    name: ClassVar[str] = "joint"
    description: ClassVar[str] = "backbone and exits together, on the sum of the exits' losses"
    published: ClassVar[PublishedSettings] = PublishedSettings(3, 32, 5e-5, 0.01, 0.1)

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return a single stage."""
        from offramp.training.recipes.losses import joint

        return (Stage("joint", lambda batch, step: joint(batch)),)


@dataclass(frozen=True)
class Pabee(Recipe):
    """The losses of all exits, with larger weights for deeper exits."""

    name: ClassVar[str] = "pabee"
    paper: ClassVar[str] = "PABEE, NeurIPS 2020, arXiv:2006.04152"
    description: ClassVar[str] = "joint, with each exit's loss weighted by its index"
    published: ClassVar[PublishedSettings] = PublishedSettings(5, 32, head="shared")
    policy: ClassVar[str] = "patience"

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return a single stage."""
        from offramp.training.recipes.losses import depth_weighted

        return (Stage(self.name, lambda batch, step: depth_weighted(batch)),)


@dataclass(frozen=True)
class GradientEquilibrium(Recipe):
    """ElasticBERT: the sum of the losses, where each layer gets the mean of the gradients of the exits above it."""

    name: ClassVar[str] = "elasticbert"
    paper: ClassVar[str] = "ElasticBERT, NAACL 2022, arXiv:2110.07038"
    description: ClassVar[str] = (
        "joint with gradient equilibrium: gradients are rescaled to the same magnitude in every layer"
    )
    published: ClassVar[PublishedSettings] = PublishedSettings(5, 32, 2e-5, 0.1, 0.06)

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return a single stage."""
        from offramp.training.recipes.losses import joint

        return (Stage(self.name, lambda batch, step: joint(batch), equilibrium=True),)


@dataclass(frozen=True)
class Mixed(Recipe):
    """The backbone with the last exit, then everything jointly."""

    name: ClassVar[str] = "mixed"
    paper: ClassVar[str] = "Kubaty et al., ICML 2025, arXiv:2407.14320"
    description: ClassVar[str] = "two stages: the backbone with the last exit, then joint"
    published: ClassVar[PublishedSettings] = PublishedSettings(2, 32, 5e-5, 0.01, 0.1)

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return the backbone's stage, then the joint stage."""
        from offramp.training.recipes.losses import joint, last_exit

        return (
            Stage("backbone", lambda batch, step: last_exit(batch), select_by="last"),
            Stage("joint", lambda batch, step: joint(batch)),
        )
