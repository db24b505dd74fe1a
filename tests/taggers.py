"""Tiny taggers with random exits."""

from __future__ import annotations

import random

from offramp import AdaptiveModel
from tests.tiny import WORDS, amplify_weights, save_tagger

__all__ = ["LONG", "tagger"]

LONG = " ".join(random.Random(1).choices([*WORDS, "goodly", "plots"], k=90))  # several windows


def tagger(folder, family="bert", seed=3, policy=None, **options) -> AdaptiveModel:
    """Return a tiny tagger with random exits and its own last exit."""
    save_tagger(family, folder, seed)
    model = AdaptiveModel.from_backbone(folder, exits="auto", **options)
    last = {key: value.clone() for key, value in model.exits["4"].state_dict().items()}
    amplify_weights(model.exits, 1, scale=8.0)
    model.exits["4"].load_state_dict(last)
    if policy is not None:
        model.config.policy = policy
    return model.eval()
