"""The user's model as ours: its encoder and its head as they are, new exits on the way."""

from __future__ import annotations

import copy
from typing import Any

from transformers import AutoConfig

from offramp.errors import BadModel, BadValue
from offramp.files.faults import loading
from offramp.model.adaptive import AdaptiveModel
from offramp.model.attach import ExitOptions, add_exits
from offramp.model.config import AdaptiveConfig

__all__ = ["cut_to", "with_new_exits"]


def with_new_exits(name: str, asked: ExitOptions) -> AdaptiveModel:
    """A fine-tuned classifier, or a model of ours at its full depth, with early exits that know nothing yet."""
    if asked.heads == "shared":
        raise BadValue("One pooler for all exits cannot be trained on a frozen model; use attention, linear or pooler.")
    with loading(name):
        kind = AutoConfig.from_pretrained(name).model_type
    model = _of_ours(name, asked) if kind == "offramp" else _of_theirs(name, asked)
    config = model.config
    if len(config.exit_specs) == 1:
        if config.num_layers == 1:
            raise BadModel(f"{name} has one layer and no room for an early exit.")
        raise BadValue(f"The exits asked for leave no early one; {name} has layers 1 to {config.num_layers}.")
    model.runner()  # says what is wrong with the tokenizer
    return model.eval()


def _check_type(name: str, config: AdaptiveConfig) -> None:
    """Heads imitate one answer per row; what is answered at tokens is trained instead."""
    if config.answer_type.per_token or config.answer_type.several_rows:
        raise BadModel(
            f"{name} does {config.answer_type.title}; adapt is for models with one answer per text. "
            "Use `offramp train`."
        )


def _of_theirs(name: str, asked: ExitOptions) -> AdaptiveModel:
    model = AdaptiveModel.from_backbone(name, exits=asked.exits, heads=asked.heads, **_queries(asked))
    _check_type(name, model.config)
    if model.config.exit_specs[-1].head != "family":
        raise BadModel(
            f"{name} has no classification head, so it has no answers to keep; fine-tune it first "
            "(`offramp.train(backbone, recipe='plain')`)."
        )
    return model


def _of_ours(name: str, asked: ExitOptions) -> AdaptiveModel:
    """At its full depth; what early exits it had are left out."""
    model: AdaptiveModel = AdaptiveModel.from_pretrained(name)
    config = model.config
    _check_type(name, config)
    if config.width is not None or config.ramp is not None or config.faithful:
        raise BadModel(f"{name} has gates or a converted checkpoint's ramp; adapt takes an ordinary model.")
    if config.num_layers in model.exits.untrained():
        raise BadModel(f"{name}: its last exit was never trained, so it has no answers to keep.")
    last = f"exits.{config.num_layers}."
    weights = {
        key: value
        for key, value in model.state_dict().items()
        if not key.startswith("exits.") or key.startswith((last, "exits.shared."))
    }
    single = copy.deepcopy(config)
    single.exits = [single.exits[-1]]
    single.lte, single.policy, single.calibrated = False, {"name": "never"}, None
    more = add_exits(single, weights, asked)
    return _loaded(more.config, more.weights, model)


def _queries(asked: ExitOptions) -> dict[str, Any]:
    return {"queries": asked.queries, "query_width": asked.query_width}


def cut_to(model: AdaptiveModel, layers: list[int]) -> AdaptiveModel:
    """The same model with only these of its exits."""
    config = copy.deepcopy(model.config)
    config.exits = [spec.to_dict() for spec in config.exit_specs if spec.layer in layers]
    gone = tuple(f"exits.{spec.layer}." for spec in model.config.exit_specs if spec.layer not in layers)
    weights = {key: value for key, value in model.state_dict().items() if not key.startswith(gone or ("-",))}
    return _loaded(config, weights, model)


def _loaded(config: Any, weights: Any, like: AdaptiveModel) -> AdaptiveModel:
    made = AdaptiveModel(config)
    absent, unknown = made.load_state_dict(weights, strict=False)
    if unknown or any(not key.startswith("exits.") for key in absent):
        raise AssertionError(f"weights without a place: {[*absent, *unknown][:3]}")
    made.name_or_path = config._name_or_path = like.name_or_path
    made.tokenizer = like.tokenizer
    return made.eval()
