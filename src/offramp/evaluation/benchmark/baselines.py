"""Baselines made from the same model: the full model in torch, ONNX Runtime, OpenVINO and other libraries."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from offramp.core.machine import half_precision
from offramp.core.stepper import ExitPoint
from offramp.evaluation.benchmark.engines import ENGINES
from offramp.evaluation.benchmark.entries import PADDED_LENGTH
from offramp.evaluation.benchmark.entry import Entry
from offramp.exports.exporter import GraphSource, unpadded_batches
from offramp.exports.int8 import quantize
from offramp.exports.options import Texts
from offramp.model.adaptive import AdaptiveModel
from offramp.runtimes import graph_runtimes

__all__ = ["BASELINES", "build_baselines"]

logger = logging.getLogger("offramp")

BASELINES = ("plain", "pipeline", "bfloat16", "onnx", "openvino", "originals", *ENGINES)
NUM_SAMPLES = 256  # texts for the calibration of NNCF


def build_baselines(
    model: AdaptiveModel, texts: Texts, folder: Path, names: Sequence[str], num_layers: int
) -> list[Entry]:
    """Write the graphs to `folder` and return the entries.

    One baseline has only the first layers: about `num_layers`, the mean number of layers with early exits.
    """
    entries = []
    if "plain" in names:
        entries += [Entry("plain Hugging Face", "plain"), Entry("torch float32", "full")]
        entries += [Entry("torch float32, repeated (A/A)", "full")]
    if "pipeline" in names:
        entries.append(Entry("transformers pipeline", "pipeline"))
    if "bfloat16" in names and half_precision()["bfloat16"]:
        entries.append(Entry("torch bfloat16", "full", dtype="bfloat16"))
    if "originals" in names:
        name = f"originals: batch size 1, padded to {PADDED_LENGTH}"
        entries.append(Entry(name, "originals", batches=(1,)))
    if "onnx" in names or "openvino" in names:
        entries += _graphs(model, texts, folder, names, num_layers)
    for engine in (engine for engine in ENGINES.values() if engine.name in names):
        entries += engine.build(model, texts, folder)
    return entries


def _graphs(model: AdaptiveModel, texts: Texts, folder: Path, names: Sequence[str], num_layers: int) -> list[Entry]:
    """Return the full model as one graph for ONNX Runtime and OpenVINO."""
    logger.info("Exporting the full model for the baselines …")
    source, last = GraphSource(model, texts.scales), [model.config.num_layers]
    plain = source.segments(last)
    ranges = source.ranges(last)[0] if texts.scales else None
    files = {
        precision: folder / f"{precision}.onnx"
        for precision in ("float32", "int8-static", "int8-mixed", "int8-token", "int8-dynamic")
    }
    onnx.save(plain[0], files["float32"])
    for scheme in ("static", "mixed", "token", "dynamic"):
        if scheme not in ("static", "mixed") or ranges is not None:
            onnx.save(quantize(plain[0], scheme, ranges), files[f"int8-{scheme}"])
    paths = {precision: str(file) for precision, file in files.items() if file.is_file()}
    entries = []
    for runtime in (runtime for runtime in graph_runtimes() if runtime.name in names):
        precisions = ["float32", *(f"int8-{scheme}" for scheme in runtime.scales)]
        entries += [
            Entry(f"{runtime.title} {precision}", "full", runtime.name, precision, paths[precision])
            for precision in precisions
            if precision in paths
        ]
        if runtime.has_bfloat16 and half_precision()["bfloat16"]:
            entries.append(Entry(f"{runtime.title} bfloat16", "full", runtime.name, "bfloat16", paths["float32"]))
    if "onnx" in names:
        entries += _first_layers(source, folder, num_layers)
    if "openvino" in names and (file := _nncf(model, texts, paths["float32"], folder)) is not None:
        entries.append(Entry("OpenVINO int8 (NNCF)", "full", "openvino", "int8-nncf", str(file)))
    return entries


def _first_layers(source: GraphSource, folder: Path, num_layers: int) -> list[Entry]:
    """Return static models in int8: the first layers at equal cost, and the embeddings alone if they have an exit.

    The exit on the embeddings is a table of token vectors with a classifier that imitates the full model.
    """
    *early, _ = source.model.exits.points
    if not early:
        return []
    nearest = min(early, key=lambda exit_point: abs(exit_point.layer - num_layers))
    points = [nearest, *(point for point in early if point.layer == 0 and point is not nearest)]
    return [_static_model(source, folder, point) for point in points]


def _static_model(source: GraphSource, folder: Path, point: ExitPoint) -> Entry:
    """Return the model up to an exit in int8, without early exits."""
    plain = source.segments([point.layer])
    outputs = [output for output in plain[0].graph.output if output.name != "next"]
    del plain[0].graph.output[:]
    plain[0].graph.output.extend(outputs)
    scheme = "static" if source.texts else "token"
    ranges = source.ranges([point.layer])[0] if source.texts else None
    file = folder / f"first_{point.layer}_layers.onnx"
    onnx.save(quantize(plain[0], scheme, ranges), file)
    part = "embeddings only" if point.layer == 0 else f"first {point.layer} layers"
    return Entry(f"ONNX Runtime int8-{scheme}, {part}", "full", "onnx", f"int8-{scheme}", str(file), point.layer)


def _nncf(model: AdaptiveModel, texts: Texts, graph: str, folder: Path) -> Path | None:
    """Quantize the graph with NNCF, if it is installed and there are texts; return the file."""
    if importlib.util.find_spec("nncf") is None:
        logger.info("Skipping OpenVINO int8 (NNCF): nncf is not installed (pip install nncf).")
        return None
    if not texts.scales:
        return None
    import nncf
    import openvino

    nncf.set_log_level(logging.ERROR)
    feeds = list(unpadded_batches(model.runner(), texts.scales[:NUM_SAMPLES]))
    full_model = openvino.Core().read_model(graph)
    names = [port.get_any_name() for port in full_model.inputs]
    rows = [
        {name: feed[name][row : row + 1] for name in names} for feed in feeds for row in range(len(feed["input_ids"]))
    ]
    quantized: Any = nncf.quantize(
        full_model, nncf.Dataset(rows), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(rows)
    )
    file = folder / "nncf.xml"
    openvino.save_model(quantized, file, compress_to_fp16=False)
    return file
