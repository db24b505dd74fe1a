"""The end of a run: the HTML report on the test texts, and the speed compared with the original and with int8."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from offramp.adaptation.baselines import Baseline, ordinary_int8, policy_with_agreement
from offramp.adaptation.exit_selection import ExitSelection
from offramp.adaptation.plan import AdaptPlan
from offramp.core.machine import cpu_name
from offramp.core.runner import Runner
from offramp.evaluation.evaluate import (
    EvaluationOptions,
    add_timings,
    build_results,
    plan_evaluation,
    policies_to_time,
)
from offramp.evaluation.points import Scorer
from offramp.evaluation.results import Evaluation
from offramp.evaluation.timing import Seconds, Timings, time_policies, timed_rows
from offramp.report.page import render
from offramp.runtimes import RUNTIMES
from offramp.training.imitation.teacher import short_name

__all__ = ["MeasuredSpeed", "write_report"]

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class MeasuredSpeed:
    """Speed compared with the original model and with ordinary int8, on the same texts in one run."""

    speedup: float
    over_int8: float | None
    sentence: str


def write_report(plan: AdaptPlan, selection: ExitSelection, runner: Runner) -> MeasuredSpeed:
    """Write `report.html`; return the speed."""
    data, trace = plan.rows(plan.splits.test), selection.trace
    original = replace(plan.model.runner(), name=plan.model_name)
    options = EvaluationOptions(live=False, tolerance=plan.guarantee.tolerance)
    scorer = Scorer(trace, data.metrics, None, options.tolerance)
    results = build_results(scorer, runner, data, plan_evaluation(runner, options), options)
    rows = timed_rows(len(data.rows.texts))
    baseline = ordinary_int8(plan, trace, rows)
    equal = None
    if baseline is not None:
        tolerance = plan.guarantee.tolerance
        equal = policy_with_agreement(trace, runner.config.exit_policy, baseline.agreement, rows, tolerance)
    policies = policies_to_time(results)
    timings = time_policies(
        runner,
        data.rows.texts,
        [*policies, *([] if equal is None else [equal])],
        [original, *([] if baseline is None else [baseline.runner])],
    )
    own_timings = replace(timings, policies=timings.policies[: len(policies)])
    results = _with_output_name(add_timings(results, trace, policies, own_timings, original), plan)
    (plan.new_folder / "report.html").write_text(render(results), encoding="utf-8")
    agreement = float(scorer.agrees(trace.replay(runner.config.exit_policy).answers)[rows].mean())
    return _describe(plan, runner, timings, agreement, baseline, None if equal is None else timings.policies[-1])


def _with_output_name(results: Evaluation, plan: AdaptPlan) -> Evaluation:
    return replace(
        results,
        model=replace(results.model, name=str(plan.options.output)),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _describe(
    plan: AdaptPlan,
    runner: Runner,
    timings: Timings,
    agreement: float,
    baseline: Baseline | None,
    equal: Seconds | None,
) -> MeasuredSpeed:
    """Return the ratios of CPU seconds (on an accelerator: of seconds) and their sentence."""
    on_cpu = runner.device.type == "cpu"
    own, plain = (_seconds(entry, on_cpu) for entry in (timings.policies[0], timings.full[0]))
    threads, name = runner.stepper.threads, short_name(plan.model_name)
    machine = f"{threads} thread{'s' if threads > 1 else ''}, {cpu_name()}" if on_cpu else str(runner.device)
    title = f"{RUNTIMES[runner.backend].title} {runner.dtype}, {machine}"
    sentence = (
        f"{'CPU time' if on_cpu else 'Time'} for {len(timings.rows):,} of the test texts ({title}): {own:.2f} s, "
        f"{_ratio(own, plain)} than {name} in PyTorch float32 ({plain:.2f} s)"
    )
    if own > plain:
        logger.warning("The adapted model is slower than the original here; try another `batch=` or `backend=`.")
    if baseline is None:
        return MeasuredSpeed(plain / own, None, f"{sentence}. {100 * agreement:.1f} % of the predictions are {name}'s.")
    full = _seconds(timings.full[1], on_cpu)
    sentence += (
        f" and {_ratio(own, full)} than ordinary int8, {baseline.runner.dtype} without early exits ({full:.2f} s). "
        f"{100 * agreement:.1f} % of the predictions are {name}'s; with ordinary int8 {100 * baseline.agreement:.1f} %"
    )
    if equal is None:
        sentence += ", which no threshold reaches."
    else:
        ratio = _ratio(_seconds(equal, on_cpu), full)
        sentence += f", and with a threshold for the same agreement, early exits take {ratio}."
    return MeasuredSpeed(plain / own, full / own, sentence)


def _ratio(seconds: float, other: float) -> str:
    return f"{other / seconds:.1f} × less" if other >= seconds else f"{seconds / other:.1f} × more"


def _seconds(timing: Seconds, on_cpu: bool) -> float:
    return timing.cpu if on_cpu else timing.wall
