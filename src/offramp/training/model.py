"""Build the model that a training run starts from: an encoder with new exits, or an offramp model with its own."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

from offramp.data import labels
from offramp.data.task import Task
from offramp.errors import BadValue
from offramp.files.load_errors import loading
from offramp.model import guarantee
from offramp.model.adaptive import AdaptiveModel
from offramp.model.attach import ExitOptions, add_exits
from offramp.training.imitation.run import build_imitation_model
from offramp.training.recipes import Recipe
from offramp.training.recipes.imitate import Imitate
from offramp.training.settings import Settings

__all__ = ["build_model"]


def build_model(settings: Settings, recipe: Recipe, task: Task) -> AdaptiveModel:
    """Return the backbone with the exits that the recipe and the task need; an offramp model keeps its exits."""
    with loading(settings.backbone):
        config = AutoConfig.from_pretrained(settings.backbone)
    if isinstance(recipe, Imitate):
        return _set_labels(build_imitation_model(settings), settings, task)
    if config.model_type == "offramp":
        return _load_offramp_model(settings, recipe, task)
    exits = settings.exits
    if recipe.single_exit:
        if exits != "all":
            raise BadValue(f"Recipe {recipe.name} has a single exit, after the last layer; remove `exits=`.")
        exits = [settings.num_layers or config.num_hidden_layers]
    return AdaptiveModel.from_backbone(
        settings.backbone,
        exits=exits,
        heads=_heads(settings, recipe),
        pooling=settings.pooling,
        num_layers=settings.num_layers,
        labels=_label_names(config, task),
        num_labels=task.num_labels,
        problem_type=task.answer_type.name,
        lte=recipe.lte,
        fresh_head=settings.fresh_head,
        queries=settings.queries,
        query_width=settings.query_width,
        convolution=settings.convolution,
    )


def _heads(settings: Settings, recipe: Recipe) -> str:
    """Return the kind of heads; with `pooling='first'` the default is the published kind."""
    use_published = settings.heads == "auto" and settings.pooling == "first"
    return recipe.published.head if use_published else settings.heads


def _load_offramp_model(settings: Settings, recipe: Recipe, task: Task) -> AdaptiveModel:
    """Load an offramp model with its labels and exits; one with a single exit gets early exits."""
    model: AdaptiveModel = AdaptiveModel.from_pretrained(settings.backbone)
    defaults: dict[str, Any] = {"exits": "all", "heads": "auto", "pooling": "auto", "convolution": 0}
    defaults |= {"num_layers": None, "fresh_head": False}
    if needs_exits := len(model.config.exit_specs) == 1 and not recipe.single_exit:
        defaults = {name: defaults[name] for name in ("num_layers", "fresh_head")}
    for name, default in defaults.items():
        if getattr(settings, name) != default:
            raise BadValue(f"{settings.backbone} already has exits; remove `{name}=`.")
    guarantee.clear(model.config)
    if needs_exits:
        model = _add_early_exits(model, settings, recipe)
    for spec in model.config.exit_specs:
        model.exits.head(spec.layer).temperature = spec.temperature
    return _set_labels(model, settings, task)


def _set_labels(model: AdaptiveModel, settings: Settings, task: Task) -> AdaptiveModel:
    """Set the model's class names to those of the task."""
    config = model.config
    names = labels.match_labels(settings.backbone, config.labels, config.answer_type, task)
    config.id2label = dict(enumerate(names))
    config.label2id = {label: index for index, label in enumerate(names)}
    return model


def _add_early_exits(model: AdaptiveModel, settings: Settings, recipe: Recipe) -> AdaptiveModel:
    """Return a model with a single exit (such as recipe plain trains) with early exits for another recipe."""
    options = ExitOptions(
        settings.exits,
        _heads(settings, recipe),
        settings.pooling,
        lte=recipe.lte,
        queries=settings.queries,
        query_width=settings.query_width,
        convolution=settings.convolution,
    )
    attached = add_exits(model.config, model.state_dict(), options)
    new_model = AdaptiveModel(attached.config)
    new_model.load_state_dict(attached.weights, strict=False)
    new_model.name_or_path = attached.config._name_or_path = model.name_or_path
    return new_model


def _label_names(config: Any, task: Task) -> tuple[str, ...] | None:
    """Return the task's labels, in the checkpoint's order if the checkpoint has the same labels."""
    if not task.answer_type.has_labels:
        return None
    checkpoint_labels = [str(name) for _, name in sorted((config.id2label or {}).items())]
    return labels.order_like_model(checkpoint_labels, task) or task.labels
