"""Check the contents of a config.json before a config and its backbone are built from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from offramp.encoders import FAMILIES
from offramp.errors import BadModel, UnknownName
from offramp.model.class_table import check_tables
from offramp.model.exit_spec import is_number

__all__ = ["check_adapted_for", "check_calibrated", "check_exits", "check_saved"]

REQUIRED_KEYS = {  # of config.json; their defaults could describe another model
    "backbone": "the encoder's config",
    "exits": "the list of exits",
    "problem_type": "the type of prediction",
}
SIZES = re.compile(r"size$|^num_|^n_|dim$|^max_position|^inner_group")  # integer keys of a backbone's config
POSITIVE_SIZES: tuple[str, ...] = (
    "hidden_size",
    "dim",
    "vocab_size",
    "intermediate_size",
    "hidden_dim",
    "embedding_size",
    "inner_group_num",
)
POSITIVE_SIZES += ("num_attention_heads", "n_heads", "max_position_embeddings", "num_hidden_groups")
MAX_SIZE = 10_000_000


def check_saved(saved: Mapping[str, Any]) -> None:
    """Raise `BadModel` if a required key of config.json is missing or invalid."""
    for key, description in REQUIRED_KEYS.items():
        if not saved.get(key):
            raise BadModel(f"config.json lacks `{key}`, {description}.")
    backbone, names = saved["backbone"], saved.get("id2label", {})
    if isinstance(backbone, Mapping):
        _check_backbone(backbone)
    if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names.values()):
        raise BadModel(f"config.json: `id2label` must map class indices to labels, got {names!r:.80}.")
    if not names and saved.get("label2id"):
        raise BadModel("config.json lacks `id2label`, the labels, but has `label2id`.")


def check_exits(saved: Iterable[Any]) -> None:
    """Raise `BadModel` if an exit lacks its head or pooling, which the weights do not determine."""
    for index, spec in enumerate(saved):
        if missing := {"head", "pooling"} - set(spec):
            raise BadModel(f"config.json: `exits[{index}]` lacks `{min(missing)}`: {dict(spec)!r:.80}.")


def _check_backbone(saved: Mapping[str, Any]) -> None:
    """Raise `BadModel` if the family is not supported or a size is invalid, before the backbone is built."""
    family = saved.get("model_type")
    if not isinstance(family, str):
        raise BadModel(f"config.json: `backbone.model_type` must be an encoder family, got {family!r:.60}.")
    if family not in FAMILIES:
        raise BadModel(f"config.json: {UnknownName('backbone family', family, FAMILIES)}")
    for name, value in saved.items():
        if "dropout" in name and is_number(value) and not 0 <= value <= 1:
            raise BadModel(f"config.json: `backbone.{name}` must be between 0 and 1, got {value!s:.20}.")
        if not isinstance(value, int) or isinstance(value, bool) or not SIZES.search(name):
            continue
        minimum = 1 if name in POSITIVE_SIZES else 0
        if not minimum <= value <= MAX_SIZE:
            raise BadModel(
                f"config.json: `backbone.{name}` must be between {minimum} and {MAX_SIZE:,}, got {value!s:.20}."
            )
    if not isinstance(saved.get("dtype"), str | None):
        raise BadModel(f"config.json: `backbone.dtype` must be a name such as float32, got {saved['dtype']!r:.60}.")


def check_adapted_for(adapted: Any) -> None:
    """Raise `BadModel` unless the entry is null or names a backend and a number of threads."""
    if adapted is None:
        return
    threads = adapted.get("threads") if isinstance(adapted, Mapping) else ""
    is_count = isinstance(threads, int) and not isinstance(threads, bool) and threads > 0
    if not (threads is None or is_count) or not isinstance(adapted.get("backend"), str):
        raise BadModel(f"`adapted_for` must have `backend` and a number or null as `threads`, got {adapted!r:.60}.")


def check_calibrated(calibrated: Any) -> None:
    """Raise `BadModel` if the guarantee's entry is invalid."""
    texts = ("sentence", "policy", "fingerprint", "backend", "dtype")
    if not isinstance(calibrated, Mapping) or not all(isinstance(calibrated.get(name, ""), str) for name in texts):
        raise BadModel(
            f"`calibrated` must be an object with the texts {', '.join(texts)}, got {calibrated!r:.60}. "
            "Calibrate again, or remove it."
        )
    if not calibrated.get("sentence"):
        raise BadModel("`calibrated` lacks `sentence`, the guarantee in words. Calibrate again, or remove it.")
    if not isinstance(calibrated.get("guarantee"), Mapping | None):
        raise BadModel(
            f"`calibrated.guarantee` must be an object, got {calibrated['guarantee']!r:.60}. "
            "Calibrate again, or remove it."
        )
    check_tables(calibrated)
