"""Build the graphs of an export in memory, in a set precision or the fastest that preserves predictions."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from offramp.exports.products import Range, observe_ranges
from offramp.exports.segments import cut_segments, export_whole, hidden_name
from offramp.model.adaptive import AdaptiveModel
from offramp.model.exit_spec import exit_layers
from offramp.runtimes import RUNTIMES
from offramp.runtimes.segments import SegmentStepper

__all__ = ["MIN_AGREEMENT", "ExportedGraphs", "Exporter", "GraphSource", "unpadded_batches"]

logger = logging.getLogger("offramp")

MIN_AGREEMENT = 0.99  # with torch's predictions, at every exit; below that an export is rejected
TIMED_TEXTS = 128  # for choosing a precision
COMPARED_TEXTS = 32  # for deciding whether float32 is tried
MAX_INT8_TIME = 0.9  # relative to float32; a slower int8 is not worth its differences


@dataclass(frozen=True)
class ExportedGraphs:
    """The graphs of a model in one precision."""

    precision: str
    smoothed: bool
    graphs: list[bytes]
    checked: TorchComparison | None


@dataclass(frozen=True)
class GraphSource:
    """A model as one float32 graph, and the ranges of its activations on texts: computed once for all its exports."""

    model: AdaptiveModel
    texts: Sequence[Text] = ()  # for the ranges

    @cached_property
    def whole(self) -> Any:
        """The graph with all exits of the model."""
        if self.model.gates is not None:
            logger.warning("Gates are not exported: the exported model runs all heads and channels.")
            self.model.gates_are_open = True  # also in the model that the export is compared with
        return export_whole(self.model, self.model.exits.points)

    @property
    def layers(self) -> list[int]:
        """The layers of the model's exits."""
        return [point.layer for point in self.model.exits.points]

    def segments(self, layers: Sequence[int]) -> list[Any]:
        """Return the segments of these exits, in float32."""
        return cut_segments(self.whole, layers, self.layers[-1])

    def ranges(self, layers: Sequence[int]) -> list[dict[str, Range]]:
        """Return the ranges of the inputs of the matrix products in each of the segments of these exits."""
        names = list(map(hidden_name, layers))  # of the segments' outputs in the whole graph
        return [
            self._ranges
            | {name: self._ranges[whole] for name, whole in (("hidden", start), ("next", end)) if whole in self._ranges}
            for start, end in zip([None, *names], names, strict=False)
        ]

    @cached_property
    def _ranges(self) -> dict[str, Range]:
        """The ranges of the inputs of all matrix products on the texts, without padding, by name in the whole graph."""
        feeds: list[dict[str, Any]] = list(unpadded_batches(self.model.runner(), self.texts))
        ranges: dict[str, Range] = {}
        starts = [None, *self.layers][: len(self.layers)]
        segments = zip(zip(starts, self.layers, strict=True), self.segments(self.layers), strict=True)
        for (start, end), graph in track(list(segments), "Measuring the ranges of activations", "segments"):
            segment_ranges, outputs = observe_ranges(graph, feeds)
            if start is not None and "hidden" in segment_ranges:
                segment_ranges[hidden_name(start)] = segment_ranges.pop("hidden")
            if "next" in segment_ranges:  # read by a head per token
                segment_ranges[hidden_name(end)] = segment_ranges.pop("next")
            ranges |= segment_ranges
            feeds = [
                {"hidden": output["next"], "mask": feed["mask"]}
                for feed, output in zip(feeds, outputs, strict=True)
                if "next" in output
            ]
        return ranges


@dataclass(frozen=True)
class Exporter:
    """Exports a model: its graphs, their comparison with torch, and the choice of a precision."""

    model: AdaptiveModel
    texts: Texts
    options: ExportOptions
    quiet: bool = False
    shared: GraphSource | None = None  # of a model with the same encoder and at least these exits

    def __post_init__(self) -> None:
        int8, backend = self.options.int8, self.options.backend
        if int8 not in ("auto", "none", *KINDS):
            raise UnknownName("int8 method", int8, ("none", *KINDS))
        if int8 in ("static", "mixed") and not self.source.texts:
            raise BadValue(f"`int8={int8!r}` needs texts for its scales: set `texts=`, or use `int8='token'`.")
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
        self._log(f"Exporting exits on layers {', '.join(map(str, self._layers))}.")
        int8 = self.options.int8
        exported = self._fastest() if int8 == "auto" else self.export(int8)
        if exported.checked is not None and not self.options.force:
            lowest = min(exported.checked.agreement)
            if lowest < MIN_AGREEMENT:
                raise BadModel(
                    f"{exported.precision}: only {lowest:.1%} of an exit's predictions equal torch's "
                    f"({MIN_AGREEMENT:.0%} required); use another `int8=`, or `force=True` to export anyway."
                )
        return exported

    @property
    def methods(self) -> list[str]:
        """The int8 methods that could be the fastest, then `none` (float32); without `auto` the set one."""
        return [*self._int8_methods, "none"] if self.options.int8 == "auto" else [self.options.int8]

    def is_worth_it(self, exported: ExportedGraphs) -> bool:
        """Return whether an int8 export takes much less time than float32, at full depth."""
        exact = self.export("none", compare=False)
        steppers = [self.stepper(graphs) for graphs in (exact, exported)]
        exact_seconds, seconds = measure_seconds(self.model.runner(), steppers, self.texts.checked[:COMPARED_TEXTS])
        return seconds <= MAX_INT8_TIME * exact_seconds

    @cached_property
    def source(self) -> GraphSource:
        """The model as one graph; further exporters of this model can share it."""
        return self.shared or GraphSource(self.model, self.texts.scales)

    @property
    def _layers(self) -> list[int]:
        return [point.layer for point in self.points]

    @cached_property
    def _torch_outputs(self) -> TorchOutputs:
        return record_torch(self.model.runner(), self.texts.checked)

    @property
    def _int8_methods(self) -> list[str]:
        methods = ["static", "mixed"] if self.source.texts else ["token"]
        return [method for method in methods if method in RUNTIMES[self.options.backend].scales]

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

    def export(self, method: str, compare: bool = True) -> ExportedGraphs:
        """Export all segments with an int8 method (or none), and compare them with torch."""
        segments = self.source.segments(self._layers)
        needs_ranges = method in ("static", "mixed", "token") and bool(self.source.texts)
        if method != "none":
            ranges = self.source.ranges(self._layers) if needs_ranges else [None] * len(segments)
            pairs = zip(segments, ranges, strict=True)
            segments = [quantize(segment, method, known, self.options.smooth) for segment, known in pairs]
        graphs = [segment.SerializeToString() for segment in segments]
        smoothed = needs_ranges and self.options.smooth
        exported = ExportedGraphs("float32" if method == "none" else f"int8-{method}", smoothed, graphs, None)
        if not compare:
            return exported
        if self.texts.checked:
            checked = compare_with_torch(self._torch_outputs, self.stepper(exported), self.points)
            exported = ExportedGraphs(exported.precision, smoothed, graphs, checked)
            self._log(f"{exported.precision}: {checked}")
        return exported

    def _agreement(self, checked: TorchComparison) -> float:
        """Return the agreement that matters: of the worst exit, or with `force` of the last."""
        return checked.agreement[-1] if self.options.force else min(checked.agreement)

    def _fastest(self) -> ExportedGraphs:
        """Return the fastest precision that preserves predictions; without texts, int8 with scales per token."""
        methods = self._int8_methods
        if not self.texts.checked:
            logger.warning("The export was not compared with torch: there are no texts. Set `texts=`.")
            return self.export(methods[-1] if methods else "none")
        exact, *quantised = [self.export(method) for method in ("none", *methods)]
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


def unpadded_batches(runner: Runner, texts: Sequence[Text]) -> Iterator[dict[str, Any]]:
    """Yield inputs of the first segment, in batches of rows of equal length."""
    for chunk in runner.chunks(texts, progress=False, quiet=True):
        for batch in chunk.batches():
            for length in np.unique(batch.lengths):
                rows = np.flatnonzero(batch.lengths == length)
                ids = batch.ids[rows, :length].numpy()
                types = np.zeros_like(ids) if batch.types is None else batch.types[rows, :length].numpy()
                yield {"input_ids": ids, "token_type_ids": types, "mask": np.ones(ids.shape, bool)}
