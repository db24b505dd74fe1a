"""What the folder of a cross-encoder says about its scores: the activation, and which output means relevant."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offramp.errors import BadModel

__all__ = ["order_outputs", "read_activation"]

RELEVANT = {"relevant", "entailment", "1", "true", "yes", "match", "duplicate"}
OTHER = {"irrelevant", "not relevant", "not_relevant", "non-relevant", "not_entailment", "0", "false", "no"}
OTHER |= {"no match", "no_match", "not_match", "not_duplicate", "not duplicate"}
CLASS_NAMES = {"Sigmoid": "sigmoid", "Identity": "identity"}  # of torch.nn


def order_outputs(name: str, labels: Sequence[str]) -> list[str]:
    """Return the labels with the one that means relevant last; raise if the model is no reranker."""
    if len(labels) == 1:
        return list(labels)
    if len(labels) != 2:
        raise BadModel(
            f"{name} has {len(labels)} outputs ({', '.join(labels[:5])}); a reranker has one output, or two of which "
            "one means relevant."
        )
    if all(re.fullmatch(r"LABEL_\d+", label) for label in labels):
        return list(labels)
    for relevant, other in ((1, 0), (0, 1)):
        if labels[relevant].casefold() in RELEVANT and labels[other].casefold() in OTHER:
            return [labels[other], labels[relevant]]
    raise BadModel(
        f"{name} predicts {labels[0]} or {labels[1]}, so it is not clear which of them means relevant. If it is a "
        "reranker, rename its labels in config.json (`id2label`) to irrelevant and relevant."
    )


def read_activation(name: str, config: Any, num_outputs: int) -> str:
    """Return the activation function of the scores, as sentence-transformers reads it from the folder."""
    if num_outputs == 2:
        return "softmax"
    written = (getattr(config, "sentence_transformers", None) or {}).get("activation_fn")
    written = written or getattr(config, "sbert_ce_default_activation_function", None) or _from_file(Path(name))
    if written is None:
        return "sigmoid"
    activation = CLASS_NAMES.get(str(written).rsplit(".", 1)[-1])
    if activation is None:
        raise BadModel(f"{name}: the activation function {written!r:.80} is not supported; use Sigmoid or Identity.")
    return activation


def _from_file(folder: Path) -> str | None:
    file = folder / "config_sentence_transformers.json"
    try:
        saved = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    written = saved.get("activation_fn") if isinstance(saved, dict) else None
    return written if isinstance(written, str) else None
