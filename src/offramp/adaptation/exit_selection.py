"""The middle steps: select the fastest exits by their cost on this machine, and test the guarantee on other texts."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offramp.adaptation.alternatives import suggest_alternatives
from offramp.adaptation.folder import write_model
from offramp.adaptation.plan import AdaptPlan, NoGuarantee
from offramp.calibration.choice import choose_with_guarantee, policies_for
from offramp.calibration.placeholders import with_placeholders
from offramp.calibration.run import bind_policy, build_evidence, warn_about_constant
from offramp.calibration.tuning.choosing import (
    candidates,
    describe_candidate,
    settings_to_test,
    suggest_larger_risk,
)
from offramp.calibration.tuning.costs import Costs, measure
from offramp.calibration.tuning.search import Candidate
from offramp.data.reading import Text
from offramp.evaluation.evaluate import obtain_trace
from offramp.evaluation.reference import reference_for
from offramp.evaluation.traces.about import FULL_DEPTH
from offramp.evaluation.traces.recording import Reference
from offramp.evaluation.traces.trace import Trace
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.texts import ROWS_OF_EXAMPLE
from offramp.model.adaptive import AdaptiveModel
from offramp.policies.grids import grid
from offramp.runtimes import RUNTIMES
from offramp.training.imitation.new_exits import keep_exits

if TYPE_CHECKING:
    from offramp.exports.exporter import ExportedGraphs, Exporter, GraphSource

__all__ = ["ExitSelection", "select_exits"]

logger = logging.getLogger("offramp")

MIN_SPEEDUP = 1.02  # counted in layers; a smaller speedup counts as none
NUM_SCALE_TEXTS, NUM_CHECKED_TEXTS, NUM_TIMED_TEXTS = 256, 512, 512


@dataclass(frozen=True)
class ExitSelection:
    """The layers of the selected exits, and a trace of the texts that the guarantee was tested on."""

    layers: tuple[int, ...]
    trace: Trace
    evidence: dict[str, Any]
    source: GraphSource | None = None  # the graph of the model with all exits, if it was exported


def select_exits(plan: AdaptPlan) -> ExitSelection:
    """Write the model with the fastest exits and its guarantee; raise `NoGuarantee` if there are none."""
    return _select_exported(plan) if RUNTIMES[plan.options.tuning.backend].runs_graphs else _select_in_torch(plan)


def _select_in_torch(plan: AdaptPlan) -> ExitSelection:
    tuning, data, points = plan.options.tuning, plan.rows(plan.splits.selection), plan.model.exits.points
    if tuning.threads is not None:
        torch.set_num_threads(tuning.threads)
    plan.log_step(3, f"select the fastest exits on {_selection(plan)}.")
    runner = plan.model.runner()
    trace = obtain_trace(runner, data, plan.trace_file("choice"), quiet=True)
    policy = grid(policies_for(tuning.policy, trace.model_spec)[0], with_placeholders(trace.model_spec))[0]
    costs = measure(runner, runner.stepper, data.rows.texts[:NUM_TIMED_TEXTS], tuning.batch, policy)
    early = range(len(points) - 1)
    ranked = candidates(trace, plan.guarantee, costs, tuning, early)
    layers = [point.layer for point in points]
    if not ranked:
        hints = suggest_larger_risk(trace, plan.guarantee, costs, tuning, early)
        raise NoGuarantee(" ".join([_explain_no_exits(plan), *hints]))
    logger.info("Selected %s.", describe_candidate(ranked[0], layers, trace.answer_type))
    selected = [points[index].layer for index in ranked[0].exit_indices]
    plan.log_step(4, _describe_test(plan))
    model = keep_exits(plan.model, selected)
    test_trace = _test_trace(plan, model)
    evidence = _test_and_write(plan, model, ranked[0], test_trace)
    warn_about_constant(evidence)
    return ExitSelection(tuple(selected), test_trace, evidence)


def _test_trace(plan: AdaptPlan, model: AdaptiveModel) -> Trace:
    """Return the outputs of all exits for the test texts, in torch."""
    rows = plan.test_rows
    trace = obtain_trace(model.runner(), rows.data, plan.trace_file("test"), quiet=True)
    return replace(trace, clusters=rows.clusters)


def _select_exported(plan: AdaptPlan) -> ExitSelection:
    """Select the precision and the exits of an export, whose graphs are written into the model folder."""
    from offramp.calibration.tuning.run import calibrate_and_store, with_exits
    from offramp.exports.exporter import Exporter

    tuning, full_folder = plan.options.tuning, plan.work.folder / "all"
    options = ExportOptions(tuning.backend, plan.options.int8, force=True, threads=tuning.threads)
    # no texts that the guarantee is tested on
    texts = Texts(
        _with_rows(plan, plan.splits.training, NUM_SCALE_TEXTS),
        _with_rows(plan, plan.splits.selection, NUM_CHECKED_TEXTS),
    )
    plan.model.save_pretrained(full_folder, exports=False)
    plan.model.name_or_path = str(full_folder)
    plan.log_step(3, f"export to {RUNTIMES[tuning.backend].title}.")
    exporter = Exporter(plan.model, texts, options)
    exported, best, costs = _fastest_export(plan, exporter)
    layers = [plan.model.exits.points[index].layer for index in best.exit_indices]
    plan.log_step(5, _describe_test(plan))
    model = keep_exits(plan.model, layers)
    test_trace = _test_trace(plan, model)
    try:
        _test_and_write(plan, model, best, test_trace)  # for torch, which can also run the folder
    except NoGuarantee as err:
        logger.warning("No guarantee for the torch backend: %s", err)
        write_model(plan, model)
    model.name_or_path = str(plan.new_folder)
    outcome = calibrate_and_store(
        Exporter(
            model,
            replace(texts, checked=[]),
            with_exits(options, exported, layers),
            quiet=True,
            shared=exporter.source,
        ),
        best,
        costs,
        plan.test_rows,
        plan.guarantee,
        tuning,
        plan.trace_file("export"),
        plan.options.output,
        Reference(
            test_trace.full,
            FULL_DEPTH,
            test_trace.about["model"]["fingerprint"],
            np.asarray(test_trace.logits[:, -1]),
        ),
        None if exported.checked is None else exported.checked.select(layers),
    )
    if outcome.policy is None or outcome.trace is None or outcome.evidence is None:
        raise NoGuarantee(outcome.sentence, outcome.is_tested)
    return ExitSelection(tuple(layers), outcome.trace, outcome.evidence, exporter.source)


def _with_rows(plan: AdaptPlan, examples: list[Text], rows: int) -> list[Text]:
    """Return the first examples; if an example is many rows, shortened ones with so many rows together."""
    if not plan.model.config.answer_type.compares_rows:
        return examples[:rows]
    first = examples[: rows // ROWS_OF_EXAMPLE]
    return plan.model.config.answer_type.training_examples(first, rows, plan.options.imitation.seed)


def _fastest_export(plan: AdaptPlan, exporter: Exporter) -> tuple[ExportedGraphs, Candidate, Costs]:
    """Return the export with the fastest exits within the risk, these exits, and the measured costs.

    The differences of int8 are part of the risk. A precision that uses up nearly all of it at full depth is left out,
    because the test on other texts would probably fail.
    """
    from offramp.calibration.tuning.run import search_exits

    methods = exporter.methods
    plan.log_step(4, f"select the fastest exits{' and precision' if len(methods) > 1 else ''} on {_selection(plan)}.")
    selected: tuple[ExportedGraphs, Candidate, Costs] | None = None
    early, hints = range(len(exporter.points) - 1), list[str]()
    data, tuning = plan.rows(plan.splits.selection), plan.options.tuning
    reference: Reference | None = None
    for method in methods:
        if method == "none" and selected is not None and exporter.is_worth_it(selected[0]):
            continue  # float32 is slower
        exported = exporter.export(method)
        reference = reference or reference_for(exporter.runner(exported), data.rows.texts)
        result = search_exits(exporter, exported, data, plan.guarantee, tuning, early, reference)
        if not _may_pass(plan, result.full_depth_risk):
            changes = f"{100 * result.full_depth_risk:.1f} % {plan.model.config.answer_type.change_name}"
            changed = f"Without early exits it already has {changes}"
            reason = f"{exported.precision}: left out. {changed}, so the test of the guarantee would probably fail."
            hints += [reason, "Use `int8='none'`."] if len(methods) == 1 else []
            logger.info("%s", reason)
        elif result.best is None:
            hints += result.hints if method == methods[-1] else ()
            logger.info("%s: no early exits within the risk.", exported.precision)
        else:
            logger.info(
                "%s: %s.",
                exported.precision,
                describe_candidate(result.best, result.layers, plan.model.config.answer_type),
            )
            if selected is None or result.best.seconds < selected[1].seconds:
                selected = exported, result.best, result.costs
    if selected is None:
        raise NoGuarantee(" ".join([_explain_no_exits(plan), *hints]))
    return selected


def _may_pass(plan: AdaptPlan, rate: float) -> bool:
    """Return whether the test probably passes at this error rate: with one standard deviation more errors."""
    clusters = plan.splits.clusters
    rows = len(plan.splits.test) if clusters is None else int(clusters.max()) + 1
    return plan.guarantee.passes_with(int(np.ceil(rate * rows + np.sqrt(rate * rows))), rows)


def _test_and_write(plan: AdaptPlan, model: AdaptiveModel, best: Candidate, test_trace: Trace) -> dict[str, Any]:
    """Test the guarantee on separate texts, then write the model with its policy, guarantee and card."""
    trace, settings = settings_to_test(test_trace, best.policy)
    choice = choose_with_guarantee(trace, plan.guarantee, settings, plan.test_rows.described_origin)
    policy, speedup = choice.policy, choice.evidence.get("speedup")
    if policy is None or (speedup is not None and speedup < MIN_SPEEDUP):
        alternatives = suggest_alternatives(trace, plan.guarantee, best.policy.name)
        raise NoGuarantee(f"{choice.evidence['sentence']} {alternatives}", bool(choice.evidence["tested"]))
    evidence = build_evidence(choice.evidence, policy, trace, plan.options.output)
    config, evidence_text = bind_policy(model.runner(), policy, evidence)
    model.config.policy, model.config.calibrated = config.policy, config.calibrated
    model.config.max_tokens = config.max_tokens
    write_model(plan, model, evidence_text)
    return evidence


def _selection(plan: AdaptPlan) -> str:
    return f"{len(plan.splits.selection):,} {plan.splits.noun}"


def _describe_test(plan: AdaptPlan) -> str:
    return f"test the guarantee on {len(plan.splits.test):,} other {plan.splits.noun} and measure the speed."


def _explain_no_exits(plan: AdaptPlan) -> str:
    guarantee = plan.guarantee.describe(plan.model.config.answer_type)
    rows = f"{len(plan.splits.selection):,} selection {plan.splits.noun}"
    return f"No early exits satisfy the guarantee ({guarantee}) on the {rows}."
