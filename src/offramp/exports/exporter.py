"""The graphs of an export, in memory: every segment in the precision that is asked for, or that keeps the answers."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from offramp.core.machine import cpu_name
from offramp.core.runner import Runner
from offramp.core.stepper import ExitPoint, points_on
from offramp.data.reading import Text
from offramp.errors import BadModel, BadValue, UnknownName
from offramp.exports.check import Checked, compared, seconds_of
from offramp.exports.folder import runtime_of, tested_on
from offramp.exports.int8 import KINDS, quantise
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.products import Range, observe, without_aliases
from offramp.exports.segments import segments_of, write_segment
from offramp.model.adaptive import AdaptiveModel
from offramp.model.config import exit_layers
from offramp.runtimes import RUNTIMES
from offramp.runtimes.segments import SegmentStepper

__all__ = ["KEEPS", "ExportedGraphs", "Exporter", "plain_graphs", "ranges_of", "unpadded"]

logger = logging.getLogger("offramp")

KEEPS = 0.99  # of every exit's answers: what a precision is chosen for, and below which an export is refused
TIMED = 128  # texts that precisions are timed on
WORTH = 0.9  # of float32's time: int8 that takes more is not worth its differences


@dataclass(frozen=True)
class ExportedGraphs:
    """One precision of a model, in memory."""

    precision: str
    smoothed: bool
    graphs: list[bytes]
    checked: Checked | None


@dataclass(frozen=True)
class Exporter:
    """A model, where it is cut, the texts, and what is asked for."""

    model: AdaptiveModel
    texts: Texts
    options: ExportOptions
    quiet: bool = False

    def __post_init__(self) -> None:
        int8, backend = self.options.int8, self.options.backend
        if int8 not in ("auto", "none", *KINDS):
            raise UnknownName("kind of int8", int8, ("none", *KINDS))
        if int8 == "static" and not self.texts.scales:
            raise BadValue("Static scales are taken from texts: name some with `texts=`, or take `int8='token'`.")
        RUNTIMES[backend].check_scales(int8)
        if self.model.config.ramp_answers:
            raise BadModel(
                "A faithful model's untrained last ramp cannot be exported; convert the checkpoint without "
                "`faithful=True`."
            )
        runtime_of(backend)  # says what to install

    def _note(self, line: str) -> None:
        if not self.quiet:
            logger.info("%s", line)

    @property
    def points(self) -> tuple[ExitPoint, ...]:
        """Where it is cut, numbered as the model's exits are."""
        points = {point.layer: point for point in self.model.exits.points}
        if isinstance(self.options.exits, str):
            return tuple(points.values())
        layers = exit_layers(self.options.exits, self.model.config.num_layers)
        if missing := [layer for layer in layers if layer not in points]:
            there = ", ".join(map(str, points))
            raise BadValue(f"No exit sits on layer {missing[0]}; this model's exits are on {there}.")
        return tuple(points[layer] for layer in layers)

    def make(self) -> ExportedGraphs:
        """Export, quantise, compare with torch; what answers too differently is refused."""
        if self.model.gates is not None:
            logger.warning("The gates are left out: the exported model runs every head and channel.")
            self.model.gates_are_open = True  # what it is compared with does, too
        points, int8 = self.points, self.options.int8
        plain = plain_graphs(self.model, points)
        self._note(f"{len(points)} segments, exits on {', '.join(str(point.layer) for point in points)}.")
        ranges = None
        if self.texts.scales and int8 not in ("none", "dynamic"):
            ranges = ranges_of(self.model, plain, self.texts.scales)
        made = self._chosen(plain, ranges) if int8 == "auto" else self._made(plain, int8, ranges)
        if made.checked is not None and not self.options.force and (least := min(made.checked.agreement)) < KEEPS:
            raise BadModel(
                f"{made.precision}: an exit keeps {least:.1%} of torch's answers, and {KEEPS:.0%} are asked for; "
                "take another `int8=`, or `force=True` to keep it as it is."
            )
        return made

    def stepper(self, made: ExportedGraphs) -> SegmentStepper:
        """The graphs, opened."""
        open_graph, runtime = runtime_of(self.options.backend)
        threads = self.options.threads
        return SegmentStepper(
            self.options.backend,
            made.precision,
            points_on([point.layer for point in self.points]),
            tuple(open_graph(graph, threads) for graph in made.graphs),
            self.model.config.answer_type,
            tuple(made.graphs),
            tested_on(runtime, made.precision),
            self.model.exits.untrained(),
            threads or torch.get_num_threads(),
        )

    def runner(self, made: ExportedGraphs) -> Runner:
        """The graphs as a model that is ready to answer, with the exits that it is cut at."""
        own = self.model.runner()
        config = copy.deepcopy(own.config)
        layers = {point.layer for point in self.points}
        config.exits = [spec for spec in config.exits or () if spec["layer"] in layers]
        config.policy, config.calibrated = {"name": "never"}, None
        return replace(own, config=config, stepper=self.stepper(made))

    def _made(self, plain: Sequence[Any], kind: str, ranges: list[dict[str, Range]] | None) -> ExportedGraphs:
        """One precision of all segments, and how it answers."""
        if kind == "none":
            graphs = [graph.SerializeToString() for graph in plain]
        else:
            each = ranges if ranges is not None else [None] * len(plain)
            whole = [quantise(graph, kind, one, self.options.smooth) for graph, one in zip(plain, each, strict=True)]
            graphs = [graph.SerializeToString() for graph in whole]
        smoothed = kind != "none" and ranges is not None and self.options.smooth
        made = ExportedGraphs("float32" if kind == "none" else f"int8-{kind}", smoothed, graphs, None)
        if self.texts.checked:
            checked = compared(self.model.runner(), self.stepper(made), self.points, self.texts.checked)
            made = ExportedGraphs(made.precision, smoothed, graphs, checked)
        self._note(made.precision if made.checked is None else f"{made.precision}: {made.checked}")
        return made

    def _least(self, checked: Checked) -> float:
        """What must keep the answers: every exit, or, where others may be left out, the last."""
        return checked.agreement[-1] if self.options.force else min(checked.agreement)

    def _chosen(self, plain: Sequence[Any], ranges: list[dict[str, Range]] | None) -> ExportedGraphs:
        """The quickest precision that keeps every exit's answers; per token where there are no texts to judge by."""
        kinds = ["static"] if ranges is not None else []
        kinds += ["token"] if "token" in RUNTIMES[self.options.backend].scales else []
        if not self.texts.checked:
            logger.warning("Nothing was compared with torch: there are no texts. Name some with `texts=`.")
            return self._made(plain, kinds[-1] if kinds else "none", ranges)
        exact, *others = [self._made(plain, kind, ranges) for kind in ("none", *kinds)]
        fine = [one for one in others if one.checked is not None and self._least(one.checked) >= KEEPS]
        if not fine:
            logger.warning("No int8 keeps %.0f %% of every exit's answers here, so this is float32.", 100 * KEEPS)
            return exact
        steppers = [self.stepper(one) for one in (exact, *fine)]
        whole, *seconds = seconds_of(self.model.runner(), steppers, self.texts.checked[:TIMED])
        each = [f"{one.precision} takes {part / whole:.2f}" for one, part in zip(fine, seconds, strict=True)]
        self._note(f"{', '.join(each)} of float32's time.")
        if min(seconds) > WORTH * whole:
            share = min(seconds) / whole
            logger.warning("int8 takes %.2f of float32's time on this CPU (%s): this is float32.", share, cpu_name())
            return exact
        return fine[int(np.argmin(seconds))]


def plain_graphs(model: AdaptiveModel, points: Sequence[ExitPoint]) -> list[Any]:
    """Every segment in float32."""
    import onnx

    made = []
    with TemporaryDirectory() as place:
        for segment in segments_of(model, points):
            file = Path(place) / "segment.onnx"
            write_segment(segment, file)
            made.append(without_aliases(onnx.load(file)))
    return made


def ranges_of(model: AdaptiveModel, plain: Sequence[Any], texts: Sequence[Text]) -> list[dict[str, Range]]:
    """What goes into every segment's products on texts, batches of one length each: no padding is among it."""
    feeds: list[dict[str, Any]] = list(unpadded(model.runner(), texts))
    found = []
    for graph in plain:
        ranges, answers = observe(graph, feeds)
        found.append(ranges)
        feeds = [
            {"hidden": answer["next"], "mask": feed["mask"]}
            for feed, answer in zip(feeds, answers, strict=True)
            if "next" in answer
        ]
    return found


def unpadded(runner: Runner, texts: Sequence[Text]) -> Iterator[dict[str, Any]]:
    """What the first segment takes, in batches of rows of one length."""
    for chunk in runner.chunks(texts, progress=False, quiet=True):
        for batch in chunk.batches():
            for length in np.unique(batch.lengths):
                rows = np.flatnonzero(batch.lengths == length)
                ids = batch.ids[rows, :length].numpy()
                types = np.zeros_like(ids) if batch.types is None else batch.types[rows, :length].numpy()
                yield {"input_ids": ids, "token_type_ids": types, "mask": np.ones(ids.shape, bool)}
