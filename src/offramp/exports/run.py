"""`export(model, …)`: a model's graphs and what they are, written into its folder."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import torch

import offramp
from offramp.core.machine import cpu_name
from offramp.errors import BadValue
from offramp.exports.exporter import ExportedGraphs, Exporter
from offramp.exports.folder import FILE, OURS, Export, check_place, runtime_of, source_of
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.products import largest_weight
from offramp.exports.segments import OPSET
from offramp.files.writing import staged_folder
from offramp.model.adaptive import AdaptiveModel
from offramp.model.card import EVIDENCE
from offramp.model.config import AdaptiveConfig

__all__ = ["export", "folder_of", "store"]

logger = logging.getLogger("offramp")


def export(model: AdaptiveModel, texts: Texts, options: ExportOptions) -> Export:
    """Write the graphs and what they are into the model's folder; returns what was written."""
    check_place(folder_of(model) / options.backend, options.overwrite)
    making = Exporter(model, texts, options)
    forgotten = _is_calibrated(folder_of(model) / options.backend / FILE)
    told = store(making, making.make())
    if forgotten:
        logger.warning("What was calibrated on the export before is gone with it: calibrate this one.")
    return told


def _is_calibrated(file: Path) -> bool:
    """Whether the export that is to be replaced has a policy of its own."""
    try:
        return json.loads(file.read_text("utf-8"))["policy"] is not None
    except (OSError, ValueError, LookupError, TypeError):
        return False


def store(
    making: Exporter, made: ExportedGraphs, config: AdaptiveConfig | None = None, evidence: str | None = None
) -> Export:
    """All files of an export, or none; with a `config`, the policy that was chosen for it and the evidence."""
    model, options, folder = making.model, making.options, folder_of(making.model)
    specs = {spec.layer: spec.to_dict() for spec in model.config.exit_specs}
    names = [f"exit-{point.layer}.onnx" for point in making.points]
    told = Export(
        options.backend,
        made.precision,
        [specs[point.layer] for point in making.points],
        names,
        source_of(folder),
        list(model.exits.untrained()),
        {
            "offramp": offramp.__version__,
            "runtime": runtime_of(options.backend)[1],
            "torch": torch.__version__,
            "opset": OPSET,
            "smoothed": made.smoothed,
            "largest_weight": largest_weight(),
            "cpu": cpu_name(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        },
        None if made.checked is None else made.checked.told(),
        None if config is None else config.policy,
        None if config is None else config.calibrated,
        None if config is None else config.max_tokens,
        making.texts.seen,
    )
    with staged_folder(folder / options.backend, options.overwrite, OURS, "an export") as place:
        for name, graph in zip(names, made.graphs, strict=True):
            (place / name).write_bytes(graph)
        if evidence is not None:
            (place / EVIDENCE).write_text(evidence, encoding="utf-8")
        (place / FILE).write_text(told.written(), encoding="utf-8")
    return told


def folder_of(model: AdaptiveModel) -> Path:
    """Where a model lies."""
    folder = Path(model.name_or_path)
    if not folder.is_dir():
        raise BadValue(f"{model.name_or_path} is no folder: an export is written into one. Download the model first.")
    return folder
