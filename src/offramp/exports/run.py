"""Write an export into the model folder."""

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
from offramp.exports.folder import Export, check_export_folder, resolve_runtime
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.products import largest_weight
from offramp.exports.segments import OPSET
from offramp.files.managed_files import EXPORT
from offramp.files.writing import replace_files, staged_folder
from offramp.model.adaptive import AdaptiveModel
from offramp.model.card import EVIDENCE, new_card
from offramp.model.config import AdaptiveConfig
from offramp.model.folder import EXPORT_FILE, hash_weight_files

__all__ = ["export", "folder_of", "store"]

logger = logging.getLogger("offramp")


def export(model: AdaptiveModel, texts: Texts, options: ExportOptions) -> Export:
    """Export a model into its folder; return the contents of `offramp.json`."""
    check_export_folder(folder_of(model) / options.backend, options.overwrite)
    exporter = Exporter(model, texts, options)
    was_calibrated = _is_calibrated(folder_of(model) / options.backend / EXPORT_FILE)
    export = store(exporter, exporter.make())
    if was_calibrated:
        logger.warning("The calibration of the replaced export is lost; calibrate the new one.")
    return export


def _is_calibrated(file: Path) -> bool:
    """Return whether an existing export has a calibrated policy."""
    try:
        return json.loads(file.read_text("utf-8"))["policy"] is not None
    except (OSError, ValueError, LookupError, TypeError):
        return False


def store(
    exporter: Exporter, exported: ExportedGraphs, config: AdaptiveConfig | None = None, evidence: str | None = None
) -> Export:
    """Write all files of an export, or none; with a `config`, also its policy and the evidence."""
    model, options, folder = exporter.model, exporter.options, folder_of(exporter.model)
    specs = {spec.layer: spec.to_dict() for spec in model.config.exit_specs}
    names = [f"exit-{point.layer}.onnx" for point in exporter.points]
    export = Export(
        options.backend,
        exported.precision,
        [specs[point.layer] for point in exporter.points],
        names,
        hash_weight_files(folder),
        list(model.exits.untrained_layers()),
        {
            "offramp": offramp.__version__,
            "runtime": resolve_runtime(options.backend)[1],
            "torch": torch.__version__,
            "opset": OPSET,
            "smoothed": exported.smoothed,
            "largest_weight": largest_weight(),
            "cpu": cpu_name(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        },
        None if exported.checked is None else exported.checked.to_dict(),
        None if config is None else config.policy,
        None if config is None else config.calibrated,
        None if config is None else config.max_tokens,
        exporter.texts.seen,
    )
    with staged_folder(folder / options.backend, options.overwrite, EXPORT, "an export") as staged:
        for name, graph in zip(names, exported.graphs, strict=True):
            (staged / name).write_bytes(graph)
        if evidence is not None:
            (staged / EVIDENCE).write_text(evidence, encoding="utf-8")
        (staged / EXPORT_FILE).write_text(export.to_json(), encoding="utf-8")
    replace_files(new_card(model.config, folder))
    return export


def folder_of(model: AdaptiveModel) -> Path:
    """Return the folder of a model."""
    folder = Path(model.name_or_path)
    if not folder.is_dir():
        raise BadValue(
            f"{model.name_or_path} is not a folder; download the model first: exports are written into its folder."
        )
    return folder
