"""A checkpoint as an original implementation saved it: a config and a plain state dict."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig

from offramp.errors import BadModel
from offramp.files.load_errors import loading, reading
from offramp.files.storage import check_local_model
from offramp.model.config import AdaptiveConfig

__all__ = ["Checkpoint", "ConvertOptions", "Converted", "read"]

# keys of old configs that do not describe the model
IGNORED_CONFIG_KEYS = {
    "_num_labels",
    "architectures",
    "divide",
    "finetuning_task",
    "id2label",
    "is_decoder",
    "label2id",
    "model_type",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pruned_heads",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "use_bfloat16",
}


@dataclass(frozen=True)
class ConvertOptions:
    """The options of a conversion."""

    layers: int | None = None  # ElasticBERT: use only the first layers
    faithful: bool = False
    policy: str = "never"
    no_answer: bool = False  # question answering: a question may have no answer in its context
    pad_to: int | None = None  # EBERT: the length to which training padded rows


@dataclass(frozen=True)
class Converted:
    """The converted config and weights, and notes for the user."""

    config: AdaptiveConfig
    weights: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)
    has_new_classifiers: bool = False  # random ones, because the checkpoint has none
    ignored_keys: tuple[str, ...] = ()  # patterns of checkpoint keys that are not converted


@dataclass(frozen=True)
class Checkpoint:
    """A folder's config.json and state dict."""

    folder: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]
    used: set[str] = field(default_factory=set)  # keys that were converted

    @property
    def num_labels(self) -> int:
        """The number of classes, from the shape of the first classifier."""
        for key in sorted(self.weights):
            if re.fullmatch(r"classifiers?(\.0)?\.weight", key):
                return int(self.weights[key].shape[0])
        return len(self.config.get("id2label") or ()) or int(self.config.get("num_labels") or 2)

    @property
    def labels(self) -> dict[str, Any]:
        """Config arguments for the labels: their names if known, else their number."""
        names = self.config.get("id2label")
        if names and len(names) == self.num_labels:
            by_index = {int(index): name for index, name in names.items()}
            return {"id2label": by_index, "label2id": {name: index for index, name in by_index.items()}}
        return {"num_labels": self.num_labels}

    def backbone_config(self, family: str, **changes: Any) -> PreTrainedConfig:
        """Return a config of the current transformers version from the old fields."""
        values = {key: value for key, value in self.config.items() if key not in IGNORED_CONFIG_KEYS} | changes
        with reading(f"{self.folder}: config.json is not a valid {family} config"):
            return AutoConfig.for_model(family, **values)

    def pick(self, prefix: str, drop: Iterable[str] = ()) -> dict[str, Tensor]:
        """Return the weights under a prefix, with the prefix removed, without keys that match a `drop` pattern."""
        selected = {
            key: value
            for key, value in self.weights.items()
            if key.startswith(prefix) and not any(re.search(pattern, key[len(prefix) :]) for pattern in drop)
        }
        self.used.update(selected)
        return {key[len(prefix) :]: value for key, value in selected.items()}


def read(folder: Path) -> Checkpoint:
    """Read config.json and model.safetensors or pytorch_model.bin; pickled code is never executed."""
    if not folder.is_dir():
        check_local_model(folder)
        raise BadModel(f"No folder {folder}; a checkpoint is a folder with config.json and weights.")
    with loading(folder):
        if not (folder / "config.json").is_file():
            raise BadModel(f"{folder} is not a checkpoint: it has no config.json.")
        config = json.loads((folder / "config.json").read_text("utf-8"))
        if (folder / "model.safetensors").is_file():
            weights = load_file(folder / "model.safetensors")
        elif (folder / "pytorch_model.bin").is_file():
            weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
        else:
            raise BadModel(f"{folder} has neither model.safetensors nor pytorch_model.bin.")
    if not isinstance(config, dict):
        raise BadModel(f"{folder}: config.json is not a JSON object.")
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise BadModel(f"{folder}: the weights are not a state dict of tensors; save model.state_dict() only.")
    return Checkpoint(folder, config, {_current_key(key): _float32(value) for key, value in weights.items()})


def _current_key(key: str) -> str:
    # old TensorFlow names of LayerNorm's parameters
    return key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _float32(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value
