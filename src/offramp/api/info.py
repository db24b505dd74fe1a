"""`offramp.info`: what a model folder holds."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = ["ModelInfo", "info"]


@dataclass(frozen=True)
class ModelInfo:
    """What a model folder holds; `facts` has it as plain data."""

    name: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        from offramp.report.model_info import formatted

        return formatted(self.name, self.facts)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def info(model: str | os.PathLike[str]) -> ModelInfo:
    """Load a model, which checks every weight, and describe it: encoder, exits, labels, policy, size, exports.

    >>> print(offramp.info("my-model"))                                               # doctest: +SKIP
    """
    from offramp.core.machine import half_precision
    from offramp.model.adaptive import AdaptiveModel
    from offramp.model.tokenizer import FILES

    loaded, folder = AdaptiveModel.from_pretrained(model), Path(model)
    facts = _described(loaded.config) | {
        "parameters": {
            "backbone": sum(value.numel() for value in loaded.backbone.parameters()),
            "exits": sum(value.numel() for value in loaded.exits.parameters()),
        },
        "kept": _kept_in_training(folder),
        "exports": _exports_in(folder),
        "machine": {"short types": [name for name, there in half_precision().items() if there]},
        "tokenizer": not folder.is_dir() or any((folder / name).is_file() for name in FILES),
    }
    return ModelInfo(str(model), facts)


def _described(config: AdaptiveConfig) -> dict[str, Any]:
    """What the config knows, as plain data."""
    return {
        "backbone": config.family.name,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "problem": config.answer_type.name,
        "labels": list(config.labels),
        "policy": str(config.exit_policy),
        "guarantee": config.calibrated["sentence"] if config.calibrated else None,
        "max_length": config.max_tokens,
        "too_long": config.answer_type.too_long,
        "width": config.width,
        "exits": config.exits,
        "lte": config.lte,
        "ramp": config.ramp,
        "faithful": config.faithful,
    }


def _exports_in(folder: Path) -> dict[str, str]:
    """What lies there for other runtimes, or what is wrong with it."""
    from offramp.errors import BadModel
    from offramp.exports.folder import read_export
    from offramp.runtimes import graph_runtimes

    found = {}
    for runtime in graph_runtimes():
        if not (folder / runtime.name).is_dir():
            continue
        try:
            export = read_export(folder, runtime.name)
        except BadModel as err:
            found[runtime.name] = str(err)
            continue
        layers = ", ".join(str(spec["layer"]) for spec in export.exits)
        guarantee = "calibrated" if export.calibrated else "not calibrated"
        found[runtime.name] = f"{export.precision}, exits on {layers}, {guarantee}"
    return found


def _kept_in_training(folder: Path) -> dict[str, list[float]] | None:
    """Heads and channels that the last logged batch of training kept, per layer; None where nobody wrote it down."""
    try:
        stages = json.loads((folder / "scores.json").read_text("utf-8"))["stages"]
        logged = [entry for stage in stages for entry in stage["history"] if "width_heads" in entry]
        return {name: [float(one) for one in logged[-1][f"width_{name}"]] for name in ("heads", "channels")}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
