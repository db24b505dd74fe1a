"""What a model's answers depend on, as 32 letters: a trace and a guarantee are about this and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from offramp.model.config import AdaptiveConfig

__all__ = ["of_model", "of_weights"]

# what the exits' answers do not depend on; the maximum length comes in by itself
NOT_THE_MODEL = (
    "_name_or_path",
    "architectures",
    "calibrated",
    "dtype",
    "inputs",
    "max_tokens",
    "notes",
    "policy",
    "transformers_version",
)


LATER = ("no_answer",)  # what older models do not have; without it they are what they were


def of_weights(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Names and bytes, in the order of the names."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(weights):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def of_model(
    config: AdaptiveConfig, tokenizer: PreTrainedTokenizerBase, weights: str, limit: int, backend: str, dtype: str
) -> str:
    """Weights, exits, labels, tokenizer, maximum length, backend, precision; not the policy.

    So calibrating, which writes a policy, does not orphan its own trace.
    """
    parts = [_without(config.to_dict()), _rules(tokenizer), weights, limit, backend, dtype]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def _without(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config and those nested in it without what does not matter."""
    return {
        key: _without(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in NOT_THE_MODEL and not (key in LATER and value is None)
    }


def _rules(tokenizer: PreTrainedTokenizerBase) -> Any:
    """What turns a text into tokens, without the padding and truncation of the last call."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        rules = json.loads(backend.to_str())
        rules = {key: value for key, value in rules.items() if key not in ("padding", "truncation")}
    else:
        options = {key: value for key, value in tokenizer.init_kwargs.items() if not key.endswith(("_file", "_path"))}
        rules = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab(), "options": options}
    return [rules, tokenizer.truncation_side, list(tokenizer.model_input_names)]
