"""Build the graphs of an export in memory, in a set precision or the fastest that preserves predictions."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from offramp.core.machine import cpu_name
from offramp.core.progress import track
from offramp.core.runner import Runner
from offramp.core.stepper import ExitPoint, exit_points_on
from offramp.data.reading import Text
from offramp.errors import BadModel, BadValue, UnknownName
from offramp.exports.check import TorchComparison, TorchOutputs, compare_with_torch, measure_seconds, record_torch
from offramp.exports.folder import describe_runtime, resolve_runtime
from offramp.exports.int8 import KINDS, quantize
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.products import Range, observe_ranges, remove_aliases
from offramp.exports.segments import make_segments, write_segment
from offramp.model.adaptive import AdaptiveModel
from offramp.model.config import exit_layers
from offramp.runtimes import RUNTIMES
from offramp.runtimes.segments import SegmentStepper

__all__ = ["MIN_AGREEMENT", "ExportedGraphs", "Exporter", "activation_ranges", "float32_graphs", "unpadded_batches"]

logger = logging.getLogger("offramp")

MIN_AGREEMENT = 0.99  # with torch's predictions, at every exit; below that an export is rejected
TIMED_TEXTS = 128  # for choosing a precision
MAX_INT8_TIME = 0.9  # relative to float32; a slower int8 is not worth its differences


@dataclass(frozen=True)
class ExportedGraphs:
    """The graphs of a model in one precision."""

    precision: str
    smoothed: bool
    graphs: list[bytes]
    checked: TorchComparison | None


@dataclass(frozen=True)
class Exporter:
    """Exports a model: its graphs, their comparison with torch, and the choice of a precision."""

    model: AdaptiveModel
    texts: Texts
    options: ExportOptions
    quiet: bool = False

    def __post_init__(self) -> None:
        int8, backend = self.options.int8, self.options.backend
        if int8 not in ("auto", "none", *KINDS):
            raise UnknownName("int8 method", int8, ("none", *KINDS))
        if int8 == "static" and not self.texts.scales:
            raise BadValue("`int8='static'` needs texts for its scales: set `texts=`, or use `int8='token'`.")
        RUNTIMES[backend].check_scales(int8)
        if self.model.config.ramp_answers:
            raise BadModel(
                "A faithful model with an untrained last exit cannot be exported; convert the checkpoint without "
                "`faithful=True`."
            )
        resolve_runtime(backend)  # raises if the library is not installed

    def _log(self, line: str) -> None:
        if not self.quiet:
            logger.info("%s", line)

    @property
    def points(self) -> tuple[ExitPoint, ...]:
        """The exits to export, numbered as in the model."""
        points = {point.layer: point for point in self.model.exits.points}
        if isinstance(self.options.exits, str) and self.options.exits in ("all", "auto"):
            return tuple(points.values())
        layers = exit_layers(self.options.exits, self.model.config.num_layers)
        if missing := [layer for layer in layers if layer not in points]:
            layers_with_exit = ", ".join(map(str, points))
            raise BadValue(f"Layer {missing[0]} has no exit; the exits of this model are on layers {layers_with_exit}.")
        return tuple(points[layer] for layer in layers)

    def make(self) -> ExportedGraphs:
        """Export, quantize and compare with torch; raise if too many predictions differ."""
        self._log(f"Exporting exits on layers {', '.join(str(point.layer) for point in self.points)}.")
        float32, ranges = self._float32_and_ranges()
        int8 = self.options.int8
        exported = self._fastest(float32, ranges) if int8 == "auto" else self._export(float32, int8, ranges)
        if exported.checked is not None and not self.options.force:
            lowest = min(exported.checked.agreement)
            if lowest < MIN_AGREEMENT:
                raise BadModel(
                    f"{exported.precision}: only {lowest:.1%} of an exit's predictions equal torch's "
                    f"({MIN_AGREEMENT:.0%} required); use another `int8=`, or `force=True` to export anyway."
                )
        return exported

    def make_all(self) -> list[ExportedGraphs]:
        """Export in the set precision, or with `auto` in every precision that could be the fastest."""
        int8 = self.options.int8
        float32, ranges = self._float32_and_ranges()
        methods = ["none", *self._int8_methods(ranges)] if int8 == "auto" else [int8]
        return [self._export(float32, method, ranges) for method in methods]

    def _float32_and_ranges(self) -> tuple[list[Any], list[dict[str, Range]] | None]:
        """Return the float32 graphs, and the ranges of their activations if int8 may need them."""
        if self.model.gates is not None:
            logger.warning("Gates are not exported: the exported model runs all heads and channels.")
            self.model.gates_are_open = True  # also in the model that the export is compared with
        float32 = float32_graphs(self.model, self.points)
        if not self.texts.scales or self.options.int8 in ("none", "dynamic"):
            return float32, None
        return float32, activation_ranges(self.model, float32, self.texts.scales)

    @cached_property
    def _torch_outputs(self) -> TorchOutputs:
        return record_torch(self.model.runner(), self.texts.checked)

    def _int8_methods(self, ranges: list[dict[str, Range]] | None) -> list[str]:
        methods = ["static"] if ranges is not None else []
        return methods + (["token"] if "token" in RUNTIMES[self.options.backend].scales else [])

    def stepper(self, exported: ExportedGraphs) -> SegmentStepper:
        """Open the graphs."""
        open_graph, runtime = resolve_runtime(self.options.backend)
        threads = self.options.threads
        return SegmentStepper(
            self.options.backend,
            exported.precision,
            exit_points_on([point.layer for point in self.points]),
            tuple(open_graph(graph, threads) for graph in exported.graphs),
            self.model.config.answer_type,
            tuple(exported.graphs),
            describe_runtime(runtime, exported.precision),
            self.model.exits.untrained_layers(),
            threads or torch.get_num_threads(),
        )

    def runner(self, exported: ExportedGraphs) -> Runner:
        """Return the graphs as a model that is ready to predict."""
        torch_runner = self.model.runner()
        config = copy.deepcopy(torch_runner.config)
        layers = {point.layer for point in self.points}
        config.exits = [spec for spec in config.exits or () if spec["layer"] in layers]
        config.policy, config.calibrated = {"name": "never"}, None
        return replace(torch_runner, config=config, stepper=self.stepper(exported))

    def _export(self, float32: Sequence[Any], method: str, ranges: list[dict[str, Range]] | None) -> ExportedGraphs:
        """Export all segments with an int8 method (or none), and compare them with torch."""
        if method == "none":
            graphs = [graph.SerializeToString() for graph in float32]
        else:
            ranges_by_graph = ranges if ranges is not None else [None] * len(float32)
            pairs = zip(float32, ranges_by_graph, strict=True)
            quantised = [quantize(graph, method, known, self.options.smooth) for graph, known in pairs]
            graphs = [graph.SerializeToString() for graph in quantised]
        smoothed = method != "none" and ranges is not None and self.options.smooth
        exported = ExportedGraphs("float32" if method == "none" else f"int8-{method}", smoothed, graphs, None)
        if self.texts.checked:
            checked = compare_with_torch(self._torch_outputs, self.stepper(exported), self.points)
            exported = ExportedGraphs(exported.precision, smoothed, graphs, checked)
        self._log(exported.precision if exported.checked is None else f"{exported.precision}: {exported.checked}")
        return exported

    def _agreement(self, checked: TorchComparison) -> float:
        """Return the agreement that matters: of the worst exit, or with `force` of the last."""
        return checked.agreement[-1] if self.options.force else min(checked.agreement)

    def _fastest(self, float32: Sequence[Any], ranges: list[dict[str, Range]] | None) -> ExportedGraphs:
        """Return the fastest precision that preserves predictions; without texts, int8 with scales per token."""
        methods = self._int8_methods(ranges)
        if not self.texts.checked:
            logger.warning("The export was not compared with torch: there are no texts. Set `texts=`.")
            return self._export(float32, methods[-1] if methods else "none", ranges)
        exact, *quantised = [self._export(float32, method, ranges) for method in ("none", *methods)]
        candidates = [
            exported
            for exported in quantised
            if exported.checked is not None and self._agreement(exported.checked) >= MIN_AGREEMENT
        ]
        if not candidates:
            self._log(f"No int8 method preserves {100 * MIN_AGREEMENT:g} % of the predictions of every exit: float32.")
            return exact
        steppers = [self.stepper(exported) for exported in (exact, *candidates)]
        exact_seconds, *seconds = measure_seconds(self.model.runner(), steppers, self.texts.checked[:TIMED_TEXTS])
        times = [
            f"{exported.precision} {taken / exact_seconds:.2f}"
            for exported, taken in zip(candidates, seconds, strict=True)
        ]
        self._log(f"Time relative to float32: {', '.join(times)}.")
        if min(seconds) > MAX_INT8_TIME * exact_seconds:
            self._log(f"int8 is not faster on this CPU ({cpu_name()}); using float32.")
            return exact
        return candidates[int(np.argmin(seconds))]


def float32_graphs(model: AdaptiveModel, points: Sequence[ExitPoint]) -> list[Any]:
    """Export every segment in float32."""
    import onnx

    graphs = []
    with TemporaryDirectory() as folder:
        for segment in track(make_segments(model, points), "Exporting", "segments"):
            file = Path(folder) / "segment.onnx"
            write_segment(segment, file)
            graphs.append(remove_aliases(onnx.load(file)))
    return graphs


def activation_ranges(model: AdaptiveModel, float32: Sequence[Any], texts: Sequence[Text]) -> list[dict[str, Range]]:
    """Return the ranges of the inputs of every segment's matrix products on texts, without padding."""
    feeds: list[dict[str, Any]] = list(unpadded_batches(model.runner(), texts))
    ranges_by_graph = []
    for graph in track(float32, "Measuring the ranges of activations", "segments"):
        ranges, outputs = observe_ranges(graph, feeds)
        ranges_by_graph.append(ranges)
        feeds = [
            {"hidden": output["next"], "mask": feed["mask"]}
            for feed, output in zip(feeds, outputs, strict=True)
            if "next" in output
        ]
    return ranges_by_graph


def unpadded_batches(runner: Runner, texts: Sequence[Text]) -> Iterator[dict[str, Any]]:
    """Yield inputs of the first segment, in batches of rows of equal length."""
    for chunk in runner.chunks(texts, progress=False, quiet=True):
        for batch in chunk.batches():
            for length in np.unique(batch.lengths):
                rows = np.flatnonzero(batch.lengths == length)
                ids = batch.ids[rows, :length].numpy()
                types = np.zeros_like(ids) if batch.types is None else batch.types[rows, :length].numpy()
                yield {"input_ids": ids, "token_type_ids": types, "mask": np.ones(ids.shape, bool)}
