"""`offramp.info`: describe a model folder."""

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
    """Result of `offramp.info`; `print(info)` shows it.

    Attributes:
        name: the folder or the name on the Hub.
        facts: the description as plain data.
    """

    name: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        from offramp.report.model_info import format_info

        return format_info(self.name, self.facts)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def info(model: str | os.PathLike[str]) -> ModelInfo:
    """Describe a model: encoder, exits, labels, exit policy, size, exports. Loads the model, which checks every weight.

    Args:
        model: a model folder, or a name on the Hugging Face Hub.

    Returns:
        The description; `print` shows it.

    Examples:
        >>> print(offramp.info("my-model"))
    """
    from offramp.core.machine import half_precision
    from offramp.model.adaptive import AdaptiveModel
    from offramp.model.tokenizer import FILES

    loaded, folder = AdaptiveModel.from_pretrained(model), Path(model)
    facts = _config_facts(loaded.config) | {
        "parameters": {
            "backbone": sum(value.numel() for value in loaded.backbone.parameters()),
            "exits": sum(value.numel() for value in loaded.exits.parameters()),
        },
        "kept": _kept_width(folder),
        "exports": _exports_in(folder),
        "machine": {"short types": [name for name, supported in half_precision().items() if supported]},
        "tokenizer": not folder.is_dir() or any((folder / name).is_file() for name in FILES),
    }
    return ModelInfo(str(model), facts)


def _config_facts(config: AdaptiveConfig) -> dict[str, Any]:
    """Return the facts from the config."""
    return {
        "backbone": config.family.name,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "problem": config.answer_type.name,
        "labels": list(config.labels),
        "policy": str(config.exit_policy),
        "guarantee": config.calibrated["sentence"] if config.calibrated else None,
        "adapted_for": config.adapted_for,
        "max_length": config.max_tokens,
        "too_long": config.answer_type.truncation_note,
        "width": config.width,
        "exits": config.exits,
        "lte": config.lte,
        "ramp": config.ramp,
        "faithful": config.faithful,
    }


def _exports_in(folder: Path) -> dict[str, str]:
    """Return a description of every export in a model folder, or its error."""
    from offramp.errors import BadModel
    from offramp.exports.folder import read_export
    from offramp.runtimes import graph_runtimes

    exports = {}
    for runtime in graph_runtimes():
        if not (folder / runtime.name).is_dir():
            continue
        try:
            export = read_export(folder, runtime.name)
        except BadModel as err:
            exports[runtime.name] = str(err)
            continue
        layers = ", ".join(str(spec["layer"]) for spec in export.exits)
        guarantee = export.calibrated["sentence"] if export.calibrated else "Not calibrated."
        exports[runtime.name] = f"{export.precision}, exits on layers {layers}. {guarantee}"
    return exports


def _kept_width(folder: Path) -> dict[str, list[float]] | None:
    """Return the fractions of heads and channels that EBERT kept per layer at the end of training, if recorded."""
    try:
        stages = json.loads((folder / "scores.json").read_text("utf-8"))["stages"]
        logged = [entry for stage in stages for entry in stage["history"] if "width_heads" in entry]
        return {name: [float(fraction) for fraction in logged[-1][f"width_{name}"]] for name in ("heads", "channels")}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
