"""Fingerprints: hashes of everything that predictions depend on. A trace or guarantee is valid for one fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from offramp.model.config import AdaptiveConfig

__all__ = ["config_text", "fingerprint_model", "hash_weights"]

# keys of the config that do not change predictions; the maximum length is hashed separately
IGNORED_KEYS = (
    "_name_or_path",
    "adapted_for",
    "architectures",
    "auto_map",
    "calibrated",
    "card",
    "dtype",
    "inputs",
    "max_tokens",
    "notes",
    "policy",
    "transformers_version",
)

# newer keys, ignored if null so that fingerprints of older models stay the same
OPTIONAL_KEYS = ("no_answer", "answer_options")


def hash_weights(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Return a hash of the names, dtypes, shapes and values of weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(weights):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fingerprint_model(
    config: AdaptiveConfig,
    tokenizer: PreTrainedTokenizerBase,
    weights: str,
    limit: int,
    backend: str,
    dtype: str,
    device: str = "cpu",
) -> str:
    """Return a hash of the weights, exits, labels, tokenizer, maximum length, backend, dtype and type of device.

    It does not depend on the policy, so calibration, which sets the policy, does not invalidate its trace.
    """
    parts = [_relevant(config.to_dict()), _tokenizer_rules(tokenizer), weights, limit, backend, dtype]
    parts += [] if device == "cpu" else [device]  # fingerprints of earlier releases have no device
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def config_text(config: AdaptiveConfig) -> str:
    """Return what predictions depend on in a config, as text that is equal for equal configs."""
    return json.dumps(_relevant(config.to_dict()), sort_keys=True, default=str)


def _relevant(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config, and those nested in it, without the ignored keys."""
    return {
        key: _relevant(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in IGNORED_KEYS and not (key in OPTIONAL_KEYS and value is None)
    }


def _tokenizer_rules(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Return the tokenizer's rules without the padding and truncation settings of its last call."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        rules = json.loads(backend.to_str())
        rules = {key: value for key, value in rules.items() if key not in ("padding", "truncation")}
    else:
        options = {key: value for key, value in tokenizer.init_kwargs.items() if not key.endswith(("_file", "_path"))}
        rules = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab(), "options": options}
    return [rules, tokenizer.truncation_side, list(tokenizer.model_input_names)]
