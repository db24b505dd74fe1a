"""Another model as teacher, or as the reference of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from offramp.data.reading import Text
from offramp.errors import BadInput
from offramp.files.load_errors import loading
from offramp.model.adaptive import AdaptiveModel
from offramp.model.config import AdaptiveConfig, family_of

__all__ = ["full_model_logits", "load_full_model", "short_name"]


def short_name(name: str) -> str:
    """Return the last part of a model's path or Hub name."""
    return Path(name).resolve().name if Path(name).exists() else name.rstrip("/").split("/")[-1]


def load_full_model(name: str) -> AdaptiveModel:
    """Load a fine-tuned classifier with only its last exit, or an offramp model."""
    with loading(name):
        config = AutoConfig.from_pretrained(name)
    if config.model_type == "offramp":
        model: AdaptiveModel = AdaptiveModel.from_pretrained(name).eval()
        return model
    family_of(config)  # raises if the family is not supported
    model = AdaptiveModel.from_backbone(name, exits=[config.num_hidden_layers])
    if model.config.exit_specs[-1].head != "family":
        raise BadInput(f"{name} has no classification head; use a fine-tuned classifier.")
    return model


def full_model_logits(name: str, config: AdaptiveConfig, texts: Sequence[Text]) -> tuple[Any, str]:
    """Return another full model's logits, with its classes in the order of `config`, and its fingerprint."""
    model = load_full_model(name)
    order, runner = _label_order(name, model.config, config), model.runner()
    return runner.answer(texts, policy="never").logits[:, order], runner.fingerprint


def _label_order(name: str, other: AdaptiveConfig, config: AdaptiveConfig) -> Any:
    """Return the index of each of the config's labels among the other model's labels."""
    if other.answer_type is not config.answer_type:
        raise BadInput(
            f"{name} is a model for {other.answer_type.title}, but this model is for {config.answer_type.title}."
        )
    return config.answer_type.label_order(name, other.labels, config.labels)
