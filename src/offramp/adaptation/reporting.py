"""The end of a run: the HTML report on the test texts, and the speed compared with the original and full-depth int8."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from offramp.adaptation.baselines import Baseline, full_depth_baselines, policy_with_agreement
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
from offramp.policies import Policy
from offramp.report.page import render
from offramp.runtimes import RUNTIMES
from offramp.training.imitation.teacher import short_name

__all__ = ["MeasuredSpeed", "write_report"]

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class MeasuredSpeed:
    """Speed compared with the original model and the fastest full-depth int8 model, on the same texts in one run."""

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
    baselines = full_depth_baselines(plan, runner.dtype, trace, rows)
    policies = policies_to_time(results)
    equal = [_same_agreement(plan, runner, selection, baseline, rows) for baseline in baselines]
    timings = time_policies(
        runner,
        data.rows.texts,
        [*policies, *filter(None, equal)],
        [original, *(baseline.runner for baseline in baselines)],
    )
    own_timings = replace(timings, policies=timings.policies[: len(policies)])
    results = _with_output_name(add_timings(results, trace, policies, own_timings, original), plan)
    (plan.new_folder / "report.html").write_text(render(results), encoding="utf-8")
    times_equal = iter(timings.policies[len(policies) :])
    equal_seconds = [None if policy is None else next(times_equal) for policy in equal]
    agreement = float(scorer.agrees(trace.replay(runner.config.exit_policy).answers)[rows].mean())
    return _describe(plan, runner, timings, agreement, list(zip(baselines, equal_seconds, strict=True)))


def _same_agreement(
    plan: AdaptPlan, runner: Runner, selection: ExitSelection, baseline: Baseline, rows: NDArray[np.int64]
) -> Policy | None:
    """Return the setting of the adapted model that agrees with the original as often as a baseline does."""
    policy, tolerance = runner.config.exit_policy, plan.guarantee.tolerance
    return policy_with_agreement(selection.trace, policy, baseline.agreement, rows, tolerance)


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
    baselines: list[tuple[Baseline, Seconds | None]],
) -> MeasuredSpeed:
    """Return the ratios of CPU seconds (on an accelerator: of seconds) and their sentence."""
    on_cpu = runner.device.type == "cpu"
    own, plain, *full = (_seconds(entry, on_cpu) for entry in (timings.policies[0], *timings.full))
    threads = runner.stepper.threads
    machine = f"{threads} thread{'s' if threads > 1 else ''}, {cpu_name()}" if on_cpu else str(runner.device)
    title = f"{RUNTIMES[runner.backend].title} {runner.dtype}, {machine}"
    time = "CPU time" if on_cpu else "Time"
    sentence = (
        f"{time} for {len(timings.rows):,} of the test texts ({title}): {own:.2f} s, "
        f"{plain / own:.1f} × less than {short_name(plan.model_name)} in PyTorch float32 ({plain:.2f} s)"
    )
    if own > plain:
        logger.warning("The adapted model is slower than the original here; try another `batch=` or `backend=`.")
    if not baselines:
        return MeasuredSpeed(
            plain / own, None, f"{sentence}; {100 * agreement:.1f} % of their predictions are the same."
        )
    seconds, (baseline, equal) = min(zip(full, baselines, strict=True), key=lambda entry: entry[0])
    sentence += (
        f" and {seconds / own:.1f} × less than {baseline.title} ({seconds:.2f} s). {100 * agreement:.1f} % of their "
        f"predictions are {short_name(plan.model_name)}'s; with full-depth {baseline.runner.dtype} "
        f"{100 * baseline.agreement:.1f} %"
    )
    if equal is None:
        sentence += ", which no setting with early exits reaches."
    else:
        ratio = seconds / _seconds(equal, on_cpu)
        sentence += f", and with a threshold for that agreement exits take {ratio:.1f} × less time."
    return MeasuredSpeed(plain / own, seconds / own, sentence)


def _seconds(timing: Seconds, on_cpu: bool) -> float:
    return timing.cpu if on_cpu else timing.wall
