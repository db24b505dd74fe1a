"""Ways to train exits, each with its paper, its published settings and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any

from offramp.errors import BadValue
from offramp.registry import Registry
from offramp.training.recipes.berxit import Alternating, LearnedExits, SelfDistillation
from offramp.training.recipes.ebert import Ebert
from offramp.training.recipes.imitate import Imitate
from offramp.training.recipes.joint import ElasticBert, Joint, Mixed, Pabee
from offramp.training.recipes.recipe import Published, Recipe, Stage
from offramp.training.recipes.romebert import RomeBert, RomeBertProjected
from offramp.training.recipes.single import Plain, Static
from offramp.training.recipes.two_stage import DeeBert, DeeBertSelfDistilled

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = ["RECIPES", "Published", "Recipe", "Stage", "check", "make", "options_of", "recipe_options"]

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
        Ebert,
        Imitate,
    ],
)


def options_of(recipe: type[Recipe]) -> dict[str, Field[Any]]:
    """A recipe's options by name."""
    return {one.name: one for one in fields(recipe)}


def recipe_options() -> dict[str, tuple[Field[Any], list[str]]]:
    """Every option that a recipe declares, and the recipes that have it."""
    found: dict[str, tuple[Field[Any], list[str]]] = {}
    for recipe in RECIPES.values():
        for name, option in options_of(recipe).items():
            found.setdefault(name, (option, []))[1].append(recipe.name)
    return found


def make(name: str, options: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe with some of its options set; an option that it does not have is refused with those it has."""
    known = options_of(RECIPES[name])
    for option in options or {}:
        if option not in known:
            raise BadValue(f"Recipe {name} has no option {option}; it has {', '.join(known)}.")
    for option, value in (options or {}).items():
        if not _fits(known[option], value):
            raise BadValue(f"Recipe {name}: {option} is {value!r}; it is {WORDS[str(known[option].type)]}.")
    return RECIPES[name](**(options or {}))


WORDS = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "a word"}


def _fits(option: Field[Any], value: Any) -> bool:
    kinds: dict[str, tuple[type, ...]] = {"float": (float, int), "int": (int,), "bool": (bool,), "str": (str,)}
    return isinstance(value, kinds[str(option.type)]) and (option.type == "bool" or not isinstance(value, bool))


def check(recipe: Recipe, config: AdaptiveConfig) -> None:
    """Refuse a recipe that makes no sense for a model."""
    if recipe.needs_classes and not config.answer_type.is_one_class:
        raise BadValue(
            f"Recipe {recipe.name} does not fit a {config.answer_type.title}: it is for single label classification."
        )
    if len(config.exit_specs) == 1 and not recipe.only_last:
        raise BadValue(f"Recipe {recipe.name} trains early exits, but the model has only the last one; add `exits=`.")
    if config.width is not None and recipe.width() is None:
        raise BadValue(f"Recipe {recipe.name} does not train gates, and the model has some; use ebert, or one without.")
    if recipe.lte and not config.lte:
        raise BadValue(f"Recipe {recipe.name} trains the learning-to-exit module, which this model does not have.")
