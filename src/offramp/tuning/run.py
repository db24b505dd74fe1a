"""`tune(model, …)`: time the segments, choose exits on half of the rows, promise on the other half."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from offramp.calibration.choice import CalibrationOptions, promised, shuffled
from offramp.calibration.risks import Promise, Risk
from offramp.calibration.rows import rows_to_calibrate
from offramp.calibration.run import check_folder, write
from offramp.errors import BadValue
from offramp.evaluation.evaluate import obtain_trace
from offramp.evaluation.grids import grid
from offramp.export.folder import load_export, read_export
from offramp.export.making import ExportOptions, Making, Texts
from offramp.export.run import export
from offramp.model import AdaptiveModel
from offramp.policies import Policy
from offramp.stepper import ExitPoint
from offramp.tasks.rows import DataOptions
from offramp.traces.trace import Replayed, Trace
from offramp.tuning.costs import measure
from offramp.tuning.search import Candidate, narrowed, search

__all__ = ["TUNABLE", "Tuned", "tune"]

TUNABLE = ("entropy", "confidence", "margin")
MARGIN = 0.8  # of the risk that the search aims at: the test on other rows wants some room


@dataclass(frozen=True)
class Tuned:
    """What was found; without a policy nothing was written."""

    layers: tuple[int, ...]
    policy: Policy | None
    sentence: str
    lines: list[str]


def tune(
    name: str,
    backend: str,
    given: DataOptions,
    texts: Texts,
    promise: Promise,
    *,
    policy: str = "entropy",
    size: int = 32,
    threads: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Tuned:
    """Keep the exits that make the export quickest within the risk; it is exported anew, cut there."""
    folder = check_folder(name)
    if policy not in TUNABLE:
        raise BadValue(f"Exits are tuned for a policy by threshold ({', '.join(TUNABLE)}), not for {policy!r}.")
    model = AdaptiveModel.from_pretrained(name).eval()
    if model.config.problem.is_span:
        raise BadValue("Exits are not tuned for questions, whose windows leave each for itself; name them: --exits.")
    int8 = _precision(folder, backend)
    data, origin = rows_to_calibrate(folder, model.config, given)
    promise.check(model.config.problem, data.labels is not None)
    whole = ExportOptions(backend, int8, "all", force=True, threads=threads)
    making = Making(model, texts, whole, say)
    made = making.make()
    runner = replace(model.runner(), stepper=making.stepper(made))
    with tempfile.TemporaryDirectory() as place:
        trace = obtain_trace(runner, data, Path(place) / "trace.safetensors")
        order = shuffled(trace)
        half = len(order) // 2
        searched, tested = trace.take(np.sort(order[:half])), trace.take(np.sort(order[half:]))
        costs = measure(runner, data.rows.texts[:512], size, grid(policy, trace.shape)[0])
        lines = _told(costs, runner.stepper.exits, size)
        say("\n".join(lines))
        found = search(
            searched, grid(policy, trace.shape), costs, size, _losses(searched, promise), MARGIN * promise.risk
        )
        if not found:
            return Tuned((), None, f"No exits keep {promise.about(trace.problem)} on half the rows.", lines)
        layers = [point.layer for point in trace.points]
        for one in found[:3]:
            say(_line(one, layers))
        best = found[0]
        kept = tuple(layers[place] for place in best.places)
        options = CalibrationOptions((policy,))
        chosen, evidence = promised(narrowed(tested, best.places), promise, options, origin)
        if chosen is None:
            return Tuned(kept, None, evidence["sentence"], lines)
        evidence = evidence | {
            "policy": str(chosen),
            "rows": len(tested),
            "tuned": {"batch": size, "exits": list(kept), "search_rows": half, "modelled_seconds": best.seconds},
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **{key: trace.about[key] for key in ("offramp", "model", "data", "machine")},
        }
        int8 = made.precision.removeprefix("int8-").replace("float32", "none")
        export(model, texts, replace(whole, int8=int8, exits=list(kept), force=False, overwrite=True))
        write(folder, load_export(name, backend, threads, None, {}), chosen, evidence, None)
    return Tuned(kept, chosen, evidence["sentence"], lines)


def _precision(folder: Path, backend: str) -> str:
    """As it was exported before, or what export would choose."""
    if not (folder / backend).is_dir():
        return "auto"
    return read_export(folder, backend).precision.removeprefix("int8-").replace("float32", "none")


def _losses(trace: Trace, promise: Promise) -> Any:
    """What a row loses if it leaves at each exit, (rows, exits)."""
    risk, rows = Risk(promise, trace), trace.rows
    each = []
    for place, point in enumerate(trace.points):
        there = Replayed(np.full(rows, point.number), np.full(rows, point.layer), trace.answers_of(place))
        each.append(risk.losses(there))
    return np.stack(each, 1)


def _told(costs: Any, points: Sequence[ExitPoint], size: int) -> list[str]:
    whole = costs.segments.sum(0)
    per_row = ", ".join(
        f"{1000 * seconds / rows:.2f} ms at {rows}" for rows, seconds in zip(costs.rows, whole, strict=True)
    )
    return [f"The full depth takes, a row, in batches: {per_row}; an exit's decision {1e6 * costs.asking:.0f} µs."]


def _line(one: Candidate, layers: Sequence[int]) -> str:
    exits = ", ".join(str(layers[place]) for place in one.places)
    return f"exits on {exits}: {1000 * one.seconds:.2f} ms a row, {one.risk:.2%} other answers on the searched half"
