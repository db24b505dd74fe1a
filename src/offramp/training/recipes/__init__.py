"""Training recipes: how exits are trained, with paper, published hyperparameters and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any

from offramp.errors import BadValue
from offramp.registry import Registry
from offramp.training.recipes.berxit import Alternating, LearnedExits, SelfDistillation
from offramp.training.recipes.ebert import Ebert
from offramp.training.recipes.imitate import Imitate
from offramp.training.recipes.joint import GradientEquilibrium, Joint, Mixed, Pabee
from offramp.training.recipes.recipe import PublishedSettings, Recipe, Stage
from offramp.training.recipes.romebert import RomeBert, RomeBertProjected
from offramp.training.recipes.single import Plain, Static
from offramp.training.recipes.two_stage import DeeBert, DeeBertSelfDistilled

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = [
    "RECIPES",
    "PublishedSettings",
    "Recipe",
    "Stage",
    "check_recipe",
    "make_recipe",
    "option_fields",
    "recipe_options",
]

RECIPES: Registry[type[Recipe]] = Registry(
    "recipe",
    [
        Plain,
        Static,
        DeeBert,
        DeeBertSelfDistilled,
        Pabee,
        Joint,
        GradientEquilibrium,
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

TYPES: dict[str, tuple[type, ...]] = {"float": (float, int), "int": (int,), "bool": (bool,), "str": (str,)}
TYPE_NAMES = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}


def option_fields(recipe: type[Recipe]) -> dict[str, Field[Any]]:
    """Return the options of a recipe by name."""
    return {field.name: field for field in fields(recipe)}


def recipe_options() -> dict[str, tuple[Field[Any], list[str]]]:
    """Return the options of all recipes by name, each with the names of the recipes that have it."""
    options: dict[str, tuple[Field[Any], list[str]]] = {}
    for recipe in RECIPES.values():
        for name, field in option_fields(recipe).items():
            options.setdefault(name, (field, []))[1].append(recipe.name)
    return options


def make_recipe(name: str, options: Mapping[str, Any] | None = None) -> Recipe:
    """Return the recipe `name` with these options; raise if it does not have one of them."""
    known = option_fields(RECIPES[name])
    for option in options or {}:
        if option not in known:
            raise BadValue(f"Recipe {name} has no option {option}. Available: {', '.join(known)}.")
    for option, value in (options or {}).items():
        if not _has_type(known[option], value):
            raise BadValue(f"`{option}` must be {TYPE_NAMES[str(known[option].type)]}, got {value!r}.")
    return RECIPES[name](**(options or {}))


def _has_type(option: Field[Any], value: Any) -> bool:
    return isinstance(value, TYPES[str(option.type)]) and (option.type == "bool" or not isinstance(value, bool))


def check_recipe(recipe: Recipe, config: AdaptiveConfig) -> None:
    """Raise if the recipe does not fit the model."""
    if recipe.single_label_only and not config.answer_type.is_single_class:
        raise BadValue(
            f"Recipe {recipe.name} supports single-label classification only, not {config.answer_type.title}."
        )
    if len(config.exit_specs) == 1 and not recipe.single_exit:
        raise BadValue(f"Recipe {recipe.name} trains early exits, but the model has only the last exit; add `exits=`.")
    if config.width is not None and recipe.width() is None:
        raise BadValue(
            f"Recipe {recipe.name} does not train gates, but the model has gates; use `recipe='ebert'` or a model "
            "without gates."
        )
    if recipe.lte and not config.lte:
        raise BadValue(f"Recipe {recipe.name} trains the learning-to-exit module, which this model does not have.")
