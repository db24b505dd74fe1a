"""A fine-tuned model with new early exits; its encoder and its head stay unchanged."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from transformers import AutoConfig

from offramp.answers import answer_type_of_architectures
from offramp.errors import BadModel, BadValue
from offramp.files.load_errors import loading
from offramp.model.adaptive import AdaptiveModel
from offramp.model.attach import ExitOptions, add_exits
from offramp.model.config import AdaptiveConfig
from offramp.model.exit_spec import QUERIES, QUERY_WIDTH

__all__ = ["keep_exits", "load_with_new_exits"]


def load_with_new_exits(name: str, options: ExitOptions) -> AdaptiveModel:
    """Load a fine-tuned classifier, or an offramp model at full depth, and add untrained early exits."""
    if options.heads == "shared":
        raise BadValue("`heads='shared'` cannot be trained on a frozen model; use attention, linear or pooler.")
    with loading(name):
        config = AutoConfig.from_pretrained(name)
    model_type = config.model_type
    options = _heads_for(config, options)
    model = _from_offramp(name, options) if model_type == "offramp" else _from_classifier(name, options)
    config = model.config
    if len(config.exit_specs) == 1:
        if config.num_layers == 1:
            raise BadValue(
                f"{name} has only one layer; an early exit can only be on the embeddings: set `exits='auto'`."
            )
        raise BadValue(f"`exits` contains no early exit; choose layers below {config.num_layers}, the last layer.")
    model.runner()  # raises if the tokenizer is not usable
    return model.eval()


def _heads_for(config: Any, options: ExitOptions) -> ExitOptions:
    """Return the options with linear heads in place of attention heads if the model has an output per token."""
    is_offramp = isinstance(config, AdaptiveConfig)
    answer_type = config.answer_type if is_offramp else answer_type_of_architectures(config.architectures or ())
    if answer_type is None or not answer_type.per_token or options.heads != "attention":
        return options
    return replace(options, heads="linear", queries=QUERIES, query_width=QUERY_WIDTH)


def _check_answer_type(name: str, config: AdaptiveConfig) -> None:
    """Raise unless the model makes one prediction per text."""
    answer_type = config.answer_type
    if answer_type.multiple_rows and not answer_type.compares_rows:
        raise BadModel(
            f"{name} is a model for {config.answer_type.title}; only models with one prediction per text can be "
            "imitated. Use `offramp train` with another recipe."
        )


def _from_classifier(name: str, options: ExitOptions) -> AdaptiveModel:
    model = AdaptiveModel.from_backbone(
        name,
        exits=options.exits,
        heads=options.heads,
        queries=options.queries,
        query_width=options.query_width,
        convolution=options.convolution,
        interaction=options.interaction,
        problem_type=options.problem_type,
        answer_options=options.answer_options,
    )
    _check_answer_type(name, model.config)
    if model.config.exit_specs[-1].head != "family":
        raise BadModel(
            f"{name} has no classification head; fine-tune it first (`offramp.train(backbone, recipe='plain')`)."
        )
    return model


def _from_offramp(name: str, options: ExitOptions) -> AdaptiveModel:
    """Load an offramp model, and replace its early exits by new ones."""
    model: AdaptiveModel = AdaptiveModel.from_pretrained(name)
    config = model.config
    _check_answer_type(name, config)
    if config.width is not None or config.ramp is not None or config.faithful:
        raise BadModel(f"{name} has gates or the ramp of a converted checkpoint; use a model without them.")
    if config.num_layers in model.exits.untrained_layers():
        raise BadModel(f"The last exit of {name} is untrained; fine-tune the model first.")
    last = f"exits.{config.num_layers}."
    weights = {
        key: value
        for key, value in model.state_dict().items()
        if not key.startswith("exits.") or key.startswith((last, "exits.shared."))
    }
    single = copy.deepcopy(config)
    single.exits = [single.exits[-1]]
    single.lte, single.policy, single.calibrated = False, {"name": "never"}, None
    attached = add_exits(single, weights, options)
    return _load(attached.config, attached.weights, model)


def keep_exits(model: AdaptiveModel, layers: list[int]) -> AdaptiveModel:
    """Return the model with only the exits on these layers."""
    config = copy.deepcopy(model.config)
    config.exits = [spec.to_dict() for spec in config.exit_specs if spec.layer in layers]
    removed = tuple(f"exits.{spec.layer}." for spec in model.config.exit_specs if spec.layer not in layers)
    weights = {key: value for key, value in model.state_dict().items() if not key.startswith(removed)}
    return _load(config, weights, model)


def _load(config: Any, weights: Any, source: AdaptiveModel) -> AdaptiveModel:
    """Return a model of this config and these weights, with the name and the tokenizer of `source`."""
    model = AdaptiveModel(config)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or any(not key.startswith("exits.") for key in missing):
        raise AssertionError(f"missing or unexpected weights: {[*missing, *unexpected][:3]}")
    model.name_or_path = config._name_or_path = source.name_or_path
    model.tokenizer = source.tokenizer
    return model.to(source.device).eval()
