"""Another model as the one to imitate, or to be compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from offramp.data.reading import Text
from offramp.errors import BadInput
from offramp.files.faults import loading
from offramp.model.adaptive import AdaptiveModel
from offramp.model.config import AdaptiveConfig, family_of

__all__ = ["called", "logits_of_model", "whole_model"]


def called(name: str) -> str:
    """How a model is called in a sentence: by its folder's name, wherever one stands."""
    return Path(name).resolve().name if Path(name).exists() else name.rstrip("/").split("/")[-1]


def whole_model(name: str) -> AdaptiveModel:
    """A fine-tuned classifier, or a model of ours, to be asked at its full depth."""
    with loading(name):
        theirs = AutoConfig.from_pretrained(name)
    if theirs.model_type == "offramp":
        ours: AdaptiveModel = AdaptiveModel.from_pretrained(name).eval()
        return ours
    family_of(theirs)  # says which ones there are
    model = AdaptiveModel.from_backbone(name, exits=[theirs.num_hidden_layers])
    if model.config.exit_specs[-1].head != "family":
        raise BadInput(f"{name} has no classification head, so it has no answers to keep.")
    return model


def logits_of_model(name: str, config: AdaptiveConfig, texts: Sequence[Text]) -> tuple[Any, str]:
    """What another model says at its full depth, its classes in the order of ours; and its fingerprint."""
    model = whole_model(name)
    order, full = _order(name, model.config, config), model.runner()
    return full.answer(texts, policy="never").logits[:, order], full.fingerprint


def _order(name: str, theirs: AdaptiveConfig, ours: AdaptiveConfig) -> Any:
    """Where each of our labels stands among theirs."""
    if theirs.answer_type is not ours.answer_type:
        raise BadInput(f"{name} answers with {theirs.answer_type.title}, and this model with {ours.answer_type.title}.")
    return ours.answer_type.label_order(name, theirs.labels, ours.labels)
