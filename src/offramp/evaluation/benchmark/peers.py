"""What people use instead, made of the same model: full-depth graphs in every precision that is at hand."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from offramp.core.machine import half_precision
from offramp.evaluation.benchmark.entries import PADDED, Entry
from offramp.exports.exporter import plain_graphs, ranges_of, unpadded
from offramp.exports.int8 import quantise
from offramp.exports.options import Texts
from offramp.model.adaptive import AdaptiveModel
from offramp.runtimes import graph_runtimes

__all__ = ["PEERS", "peers"]

logger = logging.getLogger("offramp")

PEERS = ("plain", "pipeline", "bfloat16", "onnx", "openvino", "originals")
SAMPLES = 256  # texts that OpenVINO's own quantisation is calibrated on


def peers(model: AdaptiveModel, texts: Texts, place: Path, wanted: Sequence[str], static: int) -> list[Entry]:
    """Write the graphs into `place` and name everybody; `static` layers cost as much as leaving early."""
    found = []
    if "plain" in wanted:
        found += [Entry("plain Hugging Face, as it comes", "plain"), Entry("torch float32", "full")]
        found += [Entry("torch float32 again (A/A)", "full")]
    if "pipeline" in wanted:
        found.append(Entry("transformers' pipeline", "pipeline"))
    if "bfloat16" in wanted and half_precision()["bfloat16"]:
        found.append(Entry("torch bfloat16", "full", dtype="bfloat16"))
    if "originals" in wanted:
        name = f"the originals' way: one row, padded to {PADDED}"
        found.append(Entry(name, "originals", batches=(1,)))
    if "onnx" in wanted or "openvino" in wanted:
        found += _graphs(model, texts, place, wanted, static)
    return found


def _graphs(model: AdaptiveModel, texts: Texts, place: Path, wanted: Sequence[str], static: int) -> list[Entry]:
    """The full depth in one graph, as ONNX Runtime and OpenVINO run it."""
    logger.info("Writing full-depth graphs of the peers …")
    plain = plain_graphs(model, model.exits.points[-1:])
    ranges = ranges_of(model, plain, texts.scales)[0] if texts.scales else None
    files = {kind: place / f"{kind}.onnx" for kind in ("float32", "int8-static", "int8-token", "int8-dynamic")}
    onnx.save(plain[0], files["float32"])
    for kind in ("static", "token", "dynamic"):
        if kind != "static" or ranges is not None:
            onnx.save(quantise(plain[0], kind, ranges), files[f"int8-{kind}"])
    written = {kind: str(file) for kind, file in files.items() if file.is_file()}
    found = []
    for runtime in (one for one in graph_runtimes() if one.name in wanted):
        precisions = ["float32", *(f"int8-{kind}" for kind in runtime.scales)]
        found += [
            Entry(f"{runtime.title} {kind}", "full", runtime.name, kind, written[kind])
            for kind in precisions
            if kind in written
        ]
        if runtime.has_bfloat16 and half_precision()["bfloat16"]:
            found.append(Entry(f"{runtime.title} bfloat16", "full", runtime.name, "bfloat16", written["float32"]))
    if "onnx" in wanted:
        found += _cut(model, texts, place, static)
    if "openvino" in wanted and (file := _nncf(model, texts, written["float32"], place)) is not None:
        found.append(Entry("OpenVINO int8 by NNCF", "full", "openvino", "int8-nncf", str(file)))
    return found


def _cut(model: AdaptiveModel, texts: Texts, place: Path, layers: int) -> list[Entry]:
    """The first layers alone, in int8: what a static model of the same cost answers."""
    *early, _ = model.exits.points
    if not early:
        return []
    point = min(early, key=lambda one: abs(one.layer - layers))  # the nearest that has an exit
    plain, layers = plain_graphs(model, [point]), point.layer
    outputs = [one for one in plain[0].graph.output if one.name != "next"]  # nobody goes on
    del plain[0].graph.output[:]
    plain[0].graph.output.extend(outputs)
    kind = "static" if texts.scales else "token"
    ranges = ranges_of(model, plain, texts.scales)[0] if texts.scales else None
    file = place / "cut.onnx"
    onnx.save(quantise(plain[0], kind, ranges), file)
    name = f"ONNX Runtime int8-{kind}, the first {layers} layers"
    return [Entry(name, "full", "onnx", f"int8-{kind}", str(file), layers)]


def _nncf(model: AdaptiveModel, texts: Texts, graph: str, place: Path) -> Path | None:
    """OpenVINO's own quantisation, where its library is installed and there are texts."""
    if importlib.util.find_spec("nncf") is None:
        logger.info("OpenVINO's own int8 is left out: it needs nncf (pip install nncf).")
        return None
    if not texts.scales:
        return None
    import nncf
    import openvino

    nncf.set_log_level(logging.ERROR)
    feeds = list(unpadded(model.runner(), texts.scales[:SAMPLES]))
    whole = openvino.Core().read_model(graph)
    names = [port.get_any_name() for port in whole.inputs]
    rows = [
        {name: feed[name][row : row + 1] for name in names} for feed in feeds for row in range(len(feed["input_ids"]))
    ]
    made: Any = nncf.quantize(whole, nncf.Dataset(rows), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(rows))
    file = place / "nncf.xml"
    openvino.save_model(made, file, compress_to_fp16=False)
    return file
