"""`export(model, …)`: a model's graphs and what they are, written into its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch

import offramp
from offramp.errors import BadValue
from offramp.export.folder import FILE, OURS, Export, runtime_of, source_of
from offramp.export.making import ExportOptions, Making, Texts
from offramp.export.segments import OPSET
from offramp.files.writing import check_free, staged_folder
from offramp.model import AdaptiveModel
from offramp.traces.about import cpu_name

__all__ = ["export"]


def export(
    model: AdaptiveModel, texts: Texts, options: ExportOptions, say: Callable[[str], None] = lambda line: None
) -> Export:
    """Write the graphs and what they are into the model's folder; returns what was written."""
    folder = Path(model.name_or_path)
    if not folder.is_dir():
        raise BadValue(f"{model.name_or_path} is no folder: an export is written into one. Download the model first.")
    check_free(folder / options.backend, options.overwrite)
    making = Making(model, texts, options, say)
    points = making.points
    with staged_folder(folder / options.backend, options.overwrite, OURS, "an export") as place:
        made = making.make()
        specs = {spec.layer: asdict(spec) for spec in model.config.exit_specs}
        about = {
            "offramp": offramp.__version__,
            "runtime": runtime_of(options.backend)[1],
            "torch": torch.__version__,
            "opset": OPSET,
            "smoothed": made.smoothed,
            "cpu": cpu_name(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        told = Export(
            options.backend,
            made.precision,
            [specs[point.layer] for point in points],
            _write(place, [f"exit-{point.layer}" for point in points], made.graphs, options.backend),
            source_of(folder),
            list(model.exits.untrained()),
            about,
            None if made.checked is None else made.checked.told(),
        )
        (place / FILE).write_text(told.written(), encoding="utf-8")
    return told


def _write(place: Path, names: Sequence[str], graphs: Sequence[bytes], backend: str) -> list[str]:
    """Each graph in the runtime's own form; the names of the files."""
    if backend == "onnx":
        for name, graph in zip(names, graphs, strict=True):
            (place / f"{name}.onnx").write_bytes(graph)
        return [f"{name}.onnx" for name in names]
    import openvino

    core = openvino.Core()
    for name, graph in zip(names, graphs, strict=True):
        openvino.save_model(core.read_model(graph), place / f"{name}.xml", compress_to_fp16=False)
    return [f"{name}.xml" for name in names]
