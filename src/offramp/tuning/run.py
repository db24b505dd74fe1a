"""`tune(model, …)`: time the segments, choose exits on a quarter of the rows, promise on the others.

The rows of the test run through the very graphs that are written, so the promise is about these.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from offramp.batching import Text
from offramp.calibration.choice import SEED, CalibrationOptions, promised
from offramp.calibration.judge import with_some_judge
from offramp.calibration.risks import Promise, Risk
from offramp.calibration.rows import rows_to_calibrate
from offramp.calibration.run import bound, check_folder
from offramp.errors import BadValue
from offramp.evaluation.evaluate import obtain_trace
from offramp.evaluation.grids import fitting, grid
from offramp.export.folder import check_place, read_export
from offramp.export.making import KEEPS, Made, Making
from offramp.export.options import ExportOptions, Texts
from offramp.export.run import store
from offramp.export.texts import unseen
from offramp.loop import run
from offramp.model import AdaptiveModel
from offramp.policies import Judged, Policy
from offramp.runner import Runner
from offramp.stepper import Shape
from offramp.tasks.rows import DataOptions, TaskRows
from offramp.traces.trace import Trace
from offramp.tuning.costs import Costs, measure
from offramp.tuning.knobs import TUNABLE, knob
from offramp.tuning.search import Candidate, search

__all__ = ["AUTO", "TuneOptions", "Tuned", "tune"]

AUTO = "auto"
SEARCHED = 4  # a quarter of the rows is for the search, the rest for the test
MARGIN = 0.8  # of the risk that the search aims at: the test on other rows wants some room
TIMED = 512  # texts that segments, and at last the whole, are timed on


@dataclass(frozen=True)
class TuneOptions:
    """What is asked for beside the promise."""

    backend: str = "onnx"
    policy: str = AUTO
    batch: int = 32  # rows that are served together
    threads: int | None = None


@dataclass(frozen=True)
class Tuned:
    """What was found; without a policy nothing was written."""

    layers: tuple[int, ...]
    policy: Policy | None
    sentence: str


def tune(
    name: str,
    given: DataOptions,
    texts: Texts,
    promise: Promise,
    options: TuneOptions,
    say: Callable[[str], None] = lambda line: None,
) -> Tuned:
    """Keep the exits that make the export quickest within the risk."""
    folder, model = check_folder(name), AdaptiveModel.from_pretrained(name).eval()
    _check(model, options)
    check_place(folder / options.backend, overwrite=True)
    data, origin = rows_to_calibrate(folder, model.config, given)
    promise.check(model.config.problem, data.labels is not None)
    data = unseen(data, texts.seen)
    order = np.random.default_rng(SEED).permutation(len(data.rows))
    cut = len(order) // SEARCHED
    searched, tested = data.take(np.sort(order[:cut])), data.take(np.sort(order[cut:]))
    asked = _as_before(folder, options)
    making = Making(model, texts, replace(asked, force=True), say)
    made = making.make()
    best, lines = _found(making, made, searched, promise, options)
    say("\n".join(lines))
    if best is None:
        return Tuned((), None, f"No exits keep {promise.about(model.config.problem)} on a quarter of the rows.")
    layers = tuple(making.points[place].layer for place in best.places)
    return _tested(Making(model, texts, _cut(asked, made, layers), say), best, tested, promise, origin, options)


def _check(model: AdaptiveModel, options: TuneOptions) -> None:
    if options.policy not in (AUTO, *TUNABLE):
        raise BadValue(f"Exits are tuned for a policy by threshold ({', '.join(TUNABLE)}), not for {options.policy!r}.")
    if model.config.problem.is_span:
        raise BadValue("Exits are not tuned for questions, whose windows leave each for itself; name them: --exits.")
    if len(model.exits.points) == 1:
        raise BadValue("This model has no early exit that could be kept or left out.")
    for name in policies_for(options.policy, model.config.shape):
        grid(name, with_some_judge(model.config.shape))  # says what is wrong with it


def _as_before(folder: Path, options: TuneOptions) -> ExportOptions:
    """In the precision of the export that is there, or what export would choose."""
    asked = ExportOptions(options.backend, overwrite=True, threads=options.threads)
    if not (folder / options.backend).is_dir():
        return asked
    export = read_export(folder, options.backend)
    return replace(asked, int8=_kind(export.precision), smooth=bool(export.made.get("smoothed", True)))


def _cut(asked: ExportOptions, made: Made, layers: Sequence[int]) -> ExportOptions:
    return replace(asked, int8=_kind(made.precision), exits=list(layers))


def _kind(precision: str) -> str:
    return precision.removeprefix("int8-").replace("float32", "none")


def _found(
    making: Making, made: Made, data: TaskRows, promise: Promise, options: TuneOptions
) -> tuple[Candidate | None, list[str]]:
    """The quickest set of exits on these rows, and what was seen on the way."""
    runner = making.runner(made)
    last = replace(_cut(making.options, made, [making.points[-1].layer]), force=True)
    whole = Making(making.model, Texts(making.texts.scales), last, lambda line: None)
    uncut = whole.stepper(whole.make())
    with tempfile.TemporaryDirectory() as place:
        trace = obtain_trace(runner, data, Path(place) / "trace.safetensors")
        asked = grid(policies_for(options.policy, trace.shape)[0], with_some_judge(trace.shape))[0]
        costs = measure(runner, uncut, data.rows.texts[:TIMED], options.batch, asked)
        found = candidates(trace, promise, costs, options, _allowed(made))
    layers = [point.layer for point in making.points]
    return (found[0] if found else None), [_told(costs), *(_line(one, layers) for one in found[:3])]


def policies_for(name: str, shape: Shape) -> list[str]:
    """The policies to try: the one that was asked for, or the certainty that fits and the judge."""
    if name != AUTO:
        return [name]
    return [one for one in fitting(with_some_judge(shape)) if one in ("entropy", "risk")]


def candidates(
    trace: Trace, promise: Promise, costs: Costs, options: TuneOptions, allowed: Sequence[int]
) -> list[Candidate]:
    """Sets of exits with their settings, quickest first."""
    losses, found = Risk(promise, trace).at_every_exit(), []
    for name in policies_for(options.policy, trace.shape):
        turn = knob(name, trace, losses)
        found += search(trace, turn, costs, options.batch, losses, MARGIN * promise.risk, allowed)
    return sorted(found, key=lambda one: one.seconds)


def _allowed(made: Made) -> list[int]:
    """The places of early exits that keep their answers in this precision; where nothing was compared, all."""
    if made.checked is None:
        return list(range(len(made.graphs) - 1))
    return [place for place, share in enumerate(made.checked.agreement[:-1]) if share >= KEEPS]


def _tested(
    making: Making, best: Candidate, data: TaskRows, promise: Promise, origin: str, options: TuneOptions
) -> Tuned:
    """The promise about the model cut there, on rows of their own; then all of it is written."""
    made = making.make()
    runner, layers = making.runner(made), tuple(point.layer for point in making.points)
    with tempfile.TemporaryDirectory() as place:
        trace = obtain_trace(runner, data, Path(place) / "trace.safetensors")
        chosen, evidence = promised(_judged(trace, best.policy), promise, _asked(best.policy), origin)
        if chosen is None:
            return Tuned(layers, None, evidence["sentence"])
        seconds = _seconds(runner, chosen, data.rows.texts[:TIMED], options.batch)
        making.say(f"Cut there and with `{chosen}`: {1000 * seconds:.2f} ms a row, measured.")
        tuned = {"batch": options.batch, "exits": list(layers), "seconds": seconds, "modelled_seconds": best.seconds}
        evidence |= {
            "policy": str(chosen),
            "rows": len(trace),
            "seed": SEED,
            "temperatures": None,
            "tuned": tuned,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **{key: trace.about[key] for key in ("offramp", "model", "data", "machine")},
        }
    store(making, made, *bound(runner, chosen, evidence))
    return Tuned(layers, chosen, evidence["sentence"])


def _judged(trace: Trace, policy: Policy) -> Trace:
    """With the judge of a policy that has one."""
    return replace(trace, judge=(policy.offsets, policy.slopes)) if isinstance(policy, Judged) else trace


def _asked(policy: Policy) -> CalibrationOptions:
    return CalibrationOptions((policy.name,))


def _seconds(runner: Runner, policy: Policy, texts: Sequence[Text], size: int) -> float:
    """Of a row, the best of three passes in batches of so many."""
    spent = []
    for _ in range(3):
        start = time.perf_counter()
        for chunk in runner.chunks(texts, progress=False, quiet=True):
            with runner.stepper.answering():
                for _, batch in chunk.of_rows(size):
                    run(runner.stepper, batch, policy)
        spent.append(time.perf_counter() - start)
    return min(spent) / len(texts)


def _told(costs: Costs) -> str:
    each = zip(costs.rows, costs.layers.sum(0) + costs.cutting, strict=True)
    per_row = ", ".join(f"{1000 * seconds / rows:.2f} ms at {rows}" for rows, seconds in each)
    first, last = (f"{1e6 * costs.cutting[at]:.0f} and {1e6 * costs.asking[at]:.0f} µs" for at in (0, -1))
    overhead = f"a cut and an exit's decision {first} at {costs.rows[0]}, {last} at {costs.rows[-1]}"
    return f"The full depth takes, a row, in batches: {per_row}; {overhead}."


def _line(one: Candidate, layers: Sequence[int]) -> str:
    exits = ", ".join(str(layers[place]) for place in one.places)
    return f"exits on {exits}: {1000 * one.seconds:.2f} ms a row as priced, {one.risk:.2%} other answers"
