"""Ways to train exits, each with its paper, its published settings and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from offramp.config import AdaptiveConfig
from offramp.errors import BadValue
from offramp.recipes.berxit import Alternating, LearnedExits, SelfDistillation
from offramp.recipes.joint import ElasticBert, Joint, Mixed, Pabee
from offramp.recipes.recipe import Published, Recipe, Stage
from offramp.recipes.romebert import RomeBert, RomeBertProjected
from offramp.recipes.single import Plain, Static
from offramp.recipes.two_stage import DeeBert, DeeBertSelfDistilled
from offramp.registry import Registry

__all__ = ["RECIPES", "Published", "Recipe", "Stage", "check", "make"]

RECIPES: Registry[type[Recipe]] = Registry(
    "recipe",
    [
        Plain,
        Static,
        DeeBert,
        DeeBertSelfDistilled,
        Pabee,
        Joint,
        ElasticBert,
        RomeBert,
        RomeBertProjected,
        Alternating,
        LearnedExits,
        SelfDistillation,
        Mixed,
    ],
)


def make(name: str, options: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe with some of its options set; an option that it does not have is refused with those it has."""
    kind = RECIPES[name]
    known = [field.name for field in fields(kind)]
    for option in options or {}:
        if option not in known:
            raise BadValue(f"Recipe {name} has no option {option}; it has {', '.join(known)}.")
    return kind(**(options or {}))


def check(recipe: Recipe, config: AdaptiveConfig) -> None:
    """Refuse a recipe that makes no sense for a model."""
    if config.problem not in recipe.problems:
        fits = ", ".join(problem.value.replace("_", " ") for problem in recipe.problems)
        raise BadValue(
            f"Recipe {recipe.name} does not fit a {config.problem.value.replace('_', ' ')}: it is for {fits}."
        )
    if len(config.exit_specs) == 1 and not recipe.only_last:
        raise BadValue(f"Recipe {recipe.name} trains early exits, but the model has only the last one; add --exits.")
    if recipe.lte and not config.lte:
        raise BadValue(f"Recipe {recipe.name} trains the learning-to-exit module, which this model does not have.")
