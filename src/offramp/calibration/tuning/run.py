"""`tune(model, …)`: time the segments, choose exits on a quarter of the rows, test the guarantee on the others.

The test uses the exported graphs that are written, so the guarantee is about them.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from offramp.answers import AnswerType
from offramp.calibration.choice import AUTO, choose_with_guarantee, policies_for, random_split
from offramp.calibration.ledger import TestRecord, append_tests
from offramp.calibration.placeholders import with_placeholders
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.rows import CalibrationRows, RowOptions, rows_to_calibrate
from offramp.calibration.run import bind_policy, build_evidence, check_folder, notes_on, warn_about_constant
from offramp.calibration.tuning.choosing import (
    TuneOptions,
    candidates,
    describe_candidate,
    describe_costs,
    settings_to_test,
    suggest_larger_risk,
)
from offramp.calibration.tuning.costs import Costs, measure
from offramp.calibration.tuning.search import Candidate, estimate_seconds
from offramp.calibration.tuning.threshold_grids import GROUPED, TUNABLE
from offramp.core.loop import run
from offramp.core.progress import track
from offramp.core.runner import Runner
from offramp.data.reading import Text
from offramp.data.rows import DataOptions, TaskRows
from offramp.errors import BadInput, BadValue
from offramp.evaluation.evaluate import obtain_trace
from offramp.evaluation.timing import now, timed_rows
from offramp.evaluation.traces.recording import Reference
from offramp.evaluation.traces.trace import Trace
from offramp.exports.check import TorchComparison
from offramp.exports.exporter import MIN_AGREEMENT, ExportedGraphs, Exporter
from offramp.exports.folder import check_export_folder, read_export
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.run import store
from offramp.exports.texts import unseen_rows
from offramp.model.adaptive import AdaptiveModel
from offramp.policies import Policy
from offramp.policies.grids import grid

__all__ = [
    "SearchResult",
    "TuneOptions",
    "TuningOutcome",
    "calibrate_and_store",
    "search_exits",
    "tune",
    "with_exits",
]

logger = logging.getLogger("offramp")

NUM_TIMED = 512  # texts that are timed


@dataclass(frozen=True)
class TuningOutcome:
    """The exits and policy that were chosen; without a policy nothing was written."""

    layers: tuple[int, ...]
    policy: Policy | None
    sentence: str
    trace: Trace | None = None  # of the rows that the guarantee was tested on
    evidence: dict[str, Any] | None = None

    @property
    def is_tested(self) -> bool:
        """Whether the test rows were used."""
        return bool((self.evidence or {}).get("tested"))


def tune(
    name: str,
    data_options: DataOptions,
    texts: Texts,
    guarantee: Guarantee,
    options: TuneOptions,
    row_options: RowOptions | None = None,
) -> TuningOutcome:
    """Export the model with the exits that make it fastest within the risk."""
    row_options = row_options or RowOptions()
    folder, model = check_folder(name), AdaptiveModel.from_pretrained(name).eval()
    _check(model, options)
    check_export_folder(folder / options.backend, overwrite=True)
    rows = rows_to_calibrate(folder, model.config, model.tokenizer, data_options, row_options)
    config = model.config
    guarantee = rows.apply_to(guarantee).for_model(config.answer_type, config.labels, config.answer_options)
    guarantee.check(model.config.answer_type, rows.data.labels is not None, model.config.labels)
    rows = rows.take(unseen_rows(rows.data, texts.seen))
    if not len(rows.data.rows):
        raise BadInput(
            f"All {len(texts.seen):,} rows are used for the scales and checks of the export, none remain for tuning; "
            "give about 1,000 more."
        )
    search_rows, test_rows = (rows.take(part) for part in random_split(len(rows.data.rows), rows.clusters))
    export_options = _export_options(folder, options)
    exporter = Exporter(model, texts, replace(export_options, force=True))
    exported = exporter.make()
    result = search_exits(exporter, exported, search_rows.data, guarantee, options)
    answer_type = model.config.answer_type
    logger.info("%s", "\n".join([describe_costs(result.costs, answer_type), *result.describe(answer_type)]))
    best = result.best
    if best is None:
        return TuningOutcome(
            (),
            None,
            f"No early exits meet the guarantee ({guarantee.describe(model.config.answer_type)}) on the "
            f"{len(search_rows.data.rows):,} rows used for the search.",
        )
    layers = tuple(exporter.points[index].layer for index in best.exit_indices)
    final = Exporter(model, texts, with_exits(export_options, exported, layers), shared=exporter.source)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "trace.safetensors"
        outcome = calibrate_and_store(final, best, result.costs, test_rows, guarantee, options, file)
    if outcome.is_tested:
        record = TestRecord.of(guarantee, outcome.policy is not None, test_rows.keys)
        append_tests(row_options.ledger_file(folder), [record])
    return replace(outcome, trace=None)


def _check(model: AdaptiveModel, options: TuneOptions) -> None:
    if options.policy not in (AUTO, *TUNABLE, *GROUPED):
        raise BadValue(
            f"Policy {options.policy!r} cannot be tuned. Use a policy with a threshold: {', '.join(TUNABLE)}."
        )
    if model.config.answer_type.multiple_rows and not model.config.answer_type.compares_rows:
        raise BadValue(
            "Question-answering models cannot be tuned: an example may be several rows, which exit separately."
        )
    if len(model.exits.points) == 1:
        raise BadValue("This model has no early exits to choose from.")
    for name in policies_for(options.policy, model.config.model_spec):
        grid(name, with_placeholders(model.config.model_spec))  # raises if the policy does not fit the model


def _export_options(folder: Path, options: TuneOptions) -> ExportOptions:
    """Return the options of the existing export, or the defaults if there is none."""
    defaults = ExportOptions(options.backend, overwrite=True, threads=options.threads)
    if not (folder / options.backend).is_dir():
        return defaults
    export = read_export(folder, options.backend)
    return replace(defaults, int8=_int8_option(export.precision), smooth=bool(export.made.get("smoothed", True)))


def with_exits(options: ExportOptions, exported: ExportedGraphs, layers: Sequence[int]) -> ExportOptions:
    """Return options to export only these exits, in the precision of `exported`."""
    return replace(options, int8=_int8_option(exported.precision), exits=list(layers))


def _int8_option(precision: str) -> str:
    return precision.removeprefix("int8-").replace("float32", "none")


@dataclass(frozen=True)
class SearchResult:
    """The fastest set of exits within the risk on the search rows, if any, and what was measured."""

    best: Candidate | None
    costs: Costs
    layers: tuple[int, ...]
    full_depth_risk: float  # of the last exit alone, because of int8
    hints: tuple[str, ...] = ()

    def describe(self, answer_type: AnswerType) -> list[str]:
        """Return the selected exits, or what would be possible."""
        if self.best is None:
            return list(self.hints)
        return [f"Selected {describe_candidate(self.best, self.layers, answer_type)}."]


def search_exits(
    exporter: Exporter,
    exported: ExportedGraphs,
    data: TaskRows,
    guarantee: Guarantee,
    options: TuneOptions,
    allowed: Sequence[int] | None = None,
    reference: Reference | None = None,
) -> SearchResult:
    """Search the fastest set of exits; `allowed` are indices of early exits (default: those that int8 preserves).

    `reference` are the predictions of the full model in torch, if they are known already.
    """
    runner = exporter.runner(exported)
    last_exit = replace(with_exits(exporter.options, exported, [exporter.points[-1].layer]), force=True)
    full_exporter = Exporter(exporter.model, Texts(), last_exit, quiet=True, shared=exporter.source)
    undivided = full_exporter.stepper(full_exporter.make())
    allowed = _allowed(exported) if allowed is None else allowed
    with tempfile.TemporaryDirectory() as temporary:
        trace = obtain_trace(runner, data, Path(temporary) / "trace.safetensors", quiet=True, reference=reference)
        name = policies_for(options.policy, trace.model_spec)[0]
        policy = grid(name, with_placeholders(trace.model_spec))[0]
        costs = measure(runner, undivided, data.rows.texts[:NUM_TIMED], options.batch, policy)
        ranked = candidates(trace, guarantee, costs, options, allowed)
        hints = [] if ranked else suggest_larger_risk(trace, guarantee, costs, options, allowed)
        full_depth_risk = float(np.clip(Risk(guarantee, trace).losses_per_exit()[:, -1], 0, 1).mean())
    layers = tuple(point.layer for point in exporter.points)
    return SearchResult(ranked[0] if ranked else None, costs, layers, full_depth_risk, tuple(hints))


def _allowed(exported: ExportedGraphs) -> list[int]:
    """Return the indices of early exits whose predictions this precision preserves; all, if that was not checked."""
    if exported.checked is None:
        return list(range(len(exported.graphs) - 1))
    return [index for index, agreement in enumerate(exported.checked.agreement[:-1]) if agreement >= MIN_AGREEMENT]


def calibrate_and_store(
    exporter: Exporter,
    best: Candidate,
    costs: Costs,
    rows: CalibrationRows,
    guarantee: Guarantee,
    options: TuneOptions,
    trace_file: Path,
    model_name: str | None = None,
    reference: Reference | None = None,
    checked: TorchComparison | None = None,
) -> TuningOutcome:
    """Test the guarantee on an export with these exits, on separate rows; write both if it holds.

    `reference` are the predictions of the full model in torch, and `checked` is the comparison of these exits with
    torch, if they are known already.
    """
    exported = exporter.make()
    exported = exported if checked is None else replace(exported, checked=checked)
    runner, layers = exporter.runner(exported), tuple(point.layer for point in exporter.points)
    trace = obtain_trace(runner, rows.data, trace_file, quiet=exporter.quiet, reference=reference)
    trace = replace(trace, clusters=rows.clusters)
    tested, settings = settings_to_test(trace, best.policy)
    choice = choose_with_guarantee(tested, guarantee, settings, rows.described_origin)
    chosen, evidence = choice.policy, choice.evidence
    if chosen is None:
        return TuningOutcome(layers, None, evidence["sentence"], evidence=evidence)
    warn_about_constant(evidence)
    evidence["sentence"] = " ".join([evidence["sentence"], *notes_on(runner, has_gates=False)])
    texts = rows.data.rows.texts
    timed = timed_rows(texts)
    seconds = _seconds_per_row(runner, chosen, [texts[row] for row in timed], options.batch)
    forecast = best.seconds  # of a policy over groups, at the margin of the search
    if tested.group is None:
        forecast = _forecast(tested.take(timed), chosen, costs.select(best.exit_indices), options.batch)
    if not exporter.quiet:
        exits, times = (
            ", ".join(map(str, layers)),
            f"{1000 * seconds:.2f} ms per {trace.answer_type.input_name} (estimated: {1000 * forecast:.2f})",
        )
        logger.info("Exits on layers %s, %s: %s.", exits, chosen.describe(), times)
    tuned = {"batch": options.batch, "exits": list(layers), "seconds": seconds, "modelled_seconds": forecast}
    evidence = build_evidence(evidence, chosen, trace, model_name) | {"tuned": tuned}
    store(exporter, exported, *bind_policy(runner, chosen, evidence))
    return TuningOutcome(layers, chosen, evidence["sentence"], trace, evidence)


def _forecast(trace: Trace, policy: Policy, costs: Costs, size: int) -> float:
    """Return the estimated seconds per row of a policy on the rows of a trace."""
    order = np.argsort(trace.lengths, kind="stable")
    first = trace.replay(policy).exit[order] - 1
    return estimate_seconds(first, trace.lengths[order], tuple(range(len(costs.layers))), costs, size)


def _seconds_per_row(runner: Runner, policy: Policy, texts: Sequence[Text], size: int) -> float:
    """Return the seconds per row: the minimum of three passes in batches of `size` rows."""
    passes = []
    for _ in track(range(3), "Measuring the chosen exits"):
        start = now(runner.stepper)
        for chunk in runner.chunks(texts, progress=False, quiet=True):
            with runner.stepper.inference_mode():
                for _, batch in chunk.batches_of(size):
                    run(runner.stepper, batch, policy)
        passes.append(now(runner.stepper) - start)
    return min(passes) / len(texts)
