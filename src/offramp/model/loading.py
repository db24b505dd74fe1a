"""What happens before a checkpoint is loaded: the default dtype, and whether the folder is an offramp model."""

from __future__ import annotations

from typing import Any

import torch

from offramp.errors import BadModel
from offramp.model.config import AdaptiveConfig

__all__ = ["check_model_type", "with_dtype"]


def with_dtype(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with `dtype` float32 as default, unless `device_map` is set."""
    options = dict(options)
    dtype = options.pop("torch_dtype", None) or options.pop("dtype", None)
    if dtype in (None, "auto") and options.get("device_map") is None:
        dtype = torch.float32
    return options if dtype is None else options | {"dtype": dtype}


def check_model_type(name: Any, hub_options: dict[str, Any]) -> None:
    """Raise `BadModel` if the config.json is not that of an offramp model."""
    config, _ = AdaptiveConfig.get_config_dict(name, **hub_options)
    if not config:
        raise OSError("it has no config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise BadModel(f'{name}: config.json: `model_type` must be "offramp", got {model_type!r:.60}.')
    if model_type != "offramp":
        is_head = any("For" in str(architecture) for architecture in config.get("architectures") or ())
        if is_head:
            advice = f"Make it faster with `offramp.adapt('{name}', texts, output='fast')`, then use that folder."
        else:
            files = "train_file='train.csv', dev_file='dev.csv'"
            advice = f"Train exits with `offramp.train('{name}', {files}, output='my-model')`."
        raise BadModel(f"{name} is a {model_type} {'model' if is_head else 'encoder'} without exits. {advice}")
