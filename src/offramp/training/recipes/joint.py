"""All exits and the backbone together: the plain sum, PABEE, ElasticBERT, and backbone first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from offramp.training.recipes.recipe import Published, Recipe, Stage

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = ["ElasticBert", "Joint", "Mixed", "Pabee"]


@dataclass(frozen=True)
class Joint(Recipe):
    """Every exit's loss, summed."""

    name: ClassVar[str] = "joint"
    about: ClassVar[str] = "backbone and exits together on the plain sum of the exits' losses"
    published: ClassVar[Published] = Published(3, 32, 5e-5, 0.01, 0.1)

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One."""
        from offramp.training.recipes.losses import joint

        return (Stage("joint", lambda batch, step: joint(batch)),)


@dataclass(frozen=True)
class Pabee(Recipe):
    """Every exit's loss, deeper ones weighted more."""

    name: ClassVar[str] = "pabee"
    paper: ClassVar[str] = "PABEE, NeurIPS 2020, arXiv:2006.04152"
    about: ClassVar[str] = "joint, each exit's loss weighted by its number"
    published: ClassVar[Published] = Published(5, 32, head="shared")

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One."""
        from offramp.training.recipes.losses import by_depth

        return (Stage("joint", lambda batch, step: by_depth(batch)),)


@dataclass(frozen=True)
class ElasticBert(Recipe):
    """The plain sum with gradient equilibrium: a layer gets the mean of the gradients of the exits behind it."""

    name: ClassVar[str] = "elasticbert"
    paper: ClassVar[str] = "ElasticBERT, NAACL 2022, arXiv:2110.07038"
    about: ClassVar[str] = "joint with gradient equilibrium: no layer hears more of it than another"
    published: ClassVar[Published] = Published(5, 32, 2e-5, 0.1, 0.06)

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """One."""
        from offramp.training.recipes.losses import joint

        return (Stage("joint", lambda batch, step: joint(batch), equilibrium=True),)


@dataclass(frozen=True)
class Mixed(Recipe):
    """The backbone first, then everything together."""

    name: ClassVar[str] = "mixed"
    paper: ClassVar[str] = "Kubaty et al., ICML 2025, arXiv:2407.14320"
    about: ClassVar[str] = "the backbone with the last exit first, then joint"
    published: ClassVar[Published] = Published(2, 32, 5e-5, 0.01, 0.1)

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """The backbone, then all."""
        from offramp.training.recipes.losses import joint, last_exit

        return (
            Stage("backbone", lambda batch, step: last_exit(batch), with_risk_model_of="last"),
            Stage("joint", lambda batch, step: joint(batch)),
        )
