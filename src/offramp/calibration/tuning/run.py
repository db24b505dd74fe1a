"""`tune(model, …)`: time the segments, choose exits on a quarter of the rows, guarantee on the others.

The rows of the test run through the very graphs that are written, so the guarantee is about these.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from offramp.calibration.choice import AUTO, SEED, CalibrationOptions, choose_with_guarantee, policies_for
from offramp.calibration.risk_model import with_placeholder_risk_model
from offramp.calibration.risks import Guarantee
from offramp.calibration.rows import rows_to_calibrate
from offramp.calibration.run import bound, check_folder, whole_evidence
from offramp.calibration.tuning.choosing import TuneOptions, at_more_risk, candidates, line_of, told, with_risk_model_of
from offramp.calibration.tuning.costs import measure
from offramp.calibration.tuning.search import Candidate
from offramp.calibration.tuning.threshold_grids import TUNABLE
from offramp.core.loop import run
from offramp.core.runner import Runner
from offramp.data.reading import Text
from offramp.data.rows import DataOptions, TaskRows
from offramp.errors import BadInput, BadValue
from offramp.evaluation.evaluate import obtain_trace
from offramp.evaluation.traces.trace import Trace
from offramp.exports.exporter import KEEPS, ExportedGraphs, Exporter
from offramp.exports.folder import check_place, read_export
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.run import store
from offramp.exports.texts import unseen
from offramp.model.adaptive import AdaptiveModel
from offramp.policies import Policy
from offramp.policies.grids import grid

__all__ = ["TuneOptions", "Tuned", "cut", "found_on", "guaranteed_on", "tune"]

logger = logging.getLogger("offramp")

SEARCHED = 4  # a quarter of the rows is for the search, the rest for the test
TIMED = 512  # texts that segments, and at last the whole, are timed on


@dataclass(frozen=True)
class Tuned:
    """What was found; without a policy nothing was written."""

    layers: tuple[int, ...]
    policy: Policy | None
    sentence: str
    trace: Trace | None = None  # of the rows that the guarantee was tested on


def tune(
    name: str,
    given: DataOptions,
    texts: Texts,
    guarantee: Guarantee,
    options: TuneOptions,
) -> Tuned:
    """Keep the exits that make the export quickest within the risk."""
    folder, model = check_folder(name), AdaptiveModel.from_pretrained(name).eval()
    _check(model, options)
    check_place(folder / options.backend, overwrite=True)
    data, origin = rows_to_calibrate(folder, model.config, given)
    guarantee.check(model.config.answer_type, data.labels is not None)
    data = unseen(data, texts.seen)
    if not len(data.rows):
        raise BadInput(
            f"All {len(texts.seen):,} rows went into the export's scales and checks, and none are left to choose exits "
            "and to test on; give about a thousand more."
        )
    order = np.random.default_rng(SEED).permutation(len(data.rows))
    few = len(order) // SEARCHED
    searched, tested = data.take(np.sort(order[:few])), data.take(np.sort(order[few:]))
    asked = _as_before(folder, options)
    making = Exporter(model, texts, replace(asked, force=True))
    made = making.make()
    best = found_on(making, made, searched, guarantee, options)
    if best is None:
        return Tuned((), None, f"No exits keep {guarantee.about(model.config.answer_type)} on a quarter of the rows.")
    layers = tuple(making.points[place].layer for place in best.places)
    final = Exporter(model, texts, cut(asked, made, layers))
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "trace.safetensors"
        return replace(guaranteed_on(final, best, tested, guarantee, origin, options, file), trace=None)


def _check(model: AdaptiveModel, options: TuneOptions) -> None:
    if options.policy not in (AUTO, *TUNABLE):
        raise BadValue(f"Exits are tuned for a policy by threshold ({', '.join(TUNABLE)}), not for {options.policy!r}.")
    if model.config.answer_type.several_rows:
        raise BadValue("Exits are not tuned where an example is several rows, which exit each for itself.")
    if len(model.exits.points) == 1:
        raise BadValue("This model has no early exit that could be kept or left out.")
    for name in policies_for(options.policy, model.config.model_spec):
        grid(name, with_placeholder_risk_model(model.config.model_spec))  # says what is wrong with it


def _as_before(folder: Path, options: TuneOptions) -> ExportOptions:
    """In the precision of the export that is there, or what export would choose."""
    asked = ExportOptions(options.backend, overwrite=True, threads=options.threads)
    if not (folder / options.backend).is_dir():
        return asked
    export = read_export(folder, options.backend)
    return replace(asked, int8=_kind(export.precision), smooth=bool(export.made.get("smoothed", True)))


def cut(asked: ExportOptions, made: ExportedGraphs, layers: Sequence[int]) -> ExportOptions:
    """An export of these exits in the precision that was made."""
    return replace(asked, int8=_kind(made.precision), exits=list(layers))


def _kind(precision: str) -> str:
    return precision.removeprefix("int8-").replace("float32", "none")


def found_on(
    making: Exporter, made: ExportedGraphs, data: TaskRows, guarantee: Guarantee, options: TuneOptions
) -> Candidate | None:
    """The quickest set of exits on these rows."""
    runner = making.runner(made)
    last = replace(cut(making.options, made, [making.points[-1].layer]), force=True)
    whole = Exporter(making.model, Texts(making.texts.scales), last, quiet=True)
    uncut = whole.stepper(whole.make())
    with tempfile.TemporaryDirectory() as place:
        trace = obtain_trace(runner, data, Path(place) / "trace.safetensors")
        asked = grid(policies_for(options.policy, trace.model_spec)[0], with_placeholder_risk_model(trace.model_spec))[
            0
        ]
        costs = measure(runner, uncut, data.rows.texts[:TIMED], options.batch, asked)
        found = candidates(trace, guarantee, costs, options, _allowed(made))
        more = [] if found else at_more_risk(trace, guarantee, costs, options, _allowed(made))
    layers = [point.layer for point in making.points]
    logger.info("%s", "\n".join([told(costs), *more, *(line_of(one, layers) for one in found[:3])]))
    return found[0] if found else None


def _allowed(made: ExportedGraphs) -> list[int]:
    """The places of early exits that keep their answers in this precision; where nothing was compared, all."""
    if made.checked is None:
        return list(range(len(made.graphs) - 1))
    return [place for place, share in enumerate(made.checked.agreement[:-1]) if share >= KEEPS]


def guaranteed_on(
    making: Exporter,
    best: Candidate,
    data: TaskRows,
    guarantee: Guarantee,
    origin: str,
    options: TuneOptions,
    trace_file: Path,
    called: str | None = None,
) -> Tuned:
    """The guarantee about the model cut there, on rows of their own; then all of it is written."""
    made = making.make()
    runner, layers = making.runner(made), tuple(point.layer for point in making.points)
    trace = obtain_trace(runner, data, trace_file)
    chosen, evidence = choose_with_guarantee(
        with_risk_model_of(trace, best.policy), guarantee, _asked(best.policy), origin
    )
    if chosen is None:
        return Tuned(layers, None, evidence["sentence"])
    seconds = _seconds(runner, chosen, data.rows.texts[:TIMED], options.batch)
    logger.info("Cut there and with `%s`: %.2f ms a row, measured.", chosen, 1000 * seconds)
    tuned = {"batch": options.batch, "exits": list(layers), "seconds": seconds, "modelled_seconds": best.seconds}
    evidence = whole_evidence(evidence, chosen, trace, called) | {"tuned": tuned}
    store(making, made, *bound(runner, chosen, evidence))
    return Tuned(layers, chosen, evidence["sentence"], trace)


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
