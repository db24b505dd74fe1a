"""The end of a run: the HTML report on the test texts, and the speed compared with the original and with int8."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

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
from offramp.policies import Policy
from offramp.report.page import render
from offramp.runtimes import RUNTIMES
from offramp.training.imitation.teacher import short_name

__all__ = ["MeasuredSpeed", "write_report"]

logger = logging.getLogger("offramp")

MIN_OTHER_ROWS = 50


@dataclass(frozen=True)
class MeasuredSpeed:
    """Speed compared with the original model and with ordinary int8, on the same texts in one run."""

    speedup: float
    over_int8: float | None
    text: str


def write_report(plan: AdaptPlan, selection: ExitSelection, runner: Runner) -> MeasuredSpeed:
    """Write `report.html`; return the speed."""
    data, trace = plan.rows(plan.splits.test), selection.trace
    original = replace(plan.model.runner(), name=plan.model_name)
    options = EvaluationOptions(live=False, tolerance=plan.guarantee.tolerance)
    scorer = Scorer(trace, data.metrics, None, options.tolerance)
    results = build_results(scorer, runner, data, plan_evaluation(runner, options), options)
    timed = timed_rows(data.rows.texts)
    others = _spread(np.setdiff1d(np.arange(len(data.rows.texts)), timed), len(timed))
    others = timed if len(others) < MIN_OTHER_ROWS else others
    baseline = _baseline(plan, selection, np.union1d(timed, others))
    equal = None
    if baseline is not None:  # the threshold is chosen on texts that are not timed, if there are enough
        goal, tolerance = baseline.agreement(others), plan.guarantee.tolerance
        equal = policy_with_agreement(trace, runner.config.exit_policy, goal, others, tolerance)
    policies = policies_to_time(results)
    with _torch_threads(runner.stepper.threads):
        timings = time_policies(
            runner,
            data.rows.texts,
            [*policies, *([] if equal is None else [equal])],
            [original, *([] if baseline is None else [baseline.runner])],
        )
    own_timings = replace(timings, policies=timings.policies[: len(policies)])
    results = _with_output_name(add_timings(results, trace, policies, own_timings, original), plan)
    (plan.new_folder / "report.html").write_text(render(results), encoding="utf-8")
    changes = trace.answer_type.changes(
        trace.replay(runner.config.exit_policy).answers, trace.expected, scorer.tolerance
    )
    agreement = 1 - float(changes[np.union1d(timed, others)].mean())
    equal_time = None if equal is None else (equal, timings.policies[-1])
    return _describe(plan, runner, timings, agreement, baseline, equal_time)


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    """Let PyTorch use as many threads as the adapted model, for a fair comparison."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _spread(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return at most `count` of the rows, evenly spread."""
    return rows if len(rows) <= count else rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]


def _baseline(plan: AdaptPlan, selection: ExitSelection, rows: NDArray[np.int64]) -> Baseline | None:
    try:
        return ordinary_int8(plan, selection.trace, rows, selection.source)
    except Exception as err:  # a comparison that fails must not lose the tested model
        logger.warning("The comparison with ordinary int8 failed: %s", str(err).splitlines()[0])
        return None


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
    equal: tuple[Policy, Seconds] | None,
) -> MeasuredSpeed:
    """Return the ratios of CPU seconds (on an accelerator: of seconds) and a list of them as text."""
    on_cpu = runner.device.type == "cpu"
    own, plain = (_seconds(entry, on_cpu) for entry in (timings.policies[0], timings.full[0]))
    if timings.policies[0].wall > timings.full[0].wall:
        logger.warning("The adapted model is slower than the original here; try another `batch=` or `backend=`.")
    name, output, title = short_name(plan.model_name), Path(plan.options.output).name, RUNTIMES[runner.backend].title
    threads = runner.stepper.threads
    machine = f"{threads} thread{'s' if threads > 1 else ''}, {cpu_name()}" if on_cpu else str(runner.device)
    answer_type = plan.model.config.answer_type
    timed = f"{len(timings.rows):,} of the test {answer_type.input_names}"
    lines = [
        f"{'CPU time' if on_cpu else 'Time'} for {timed}, {machine}:",
        f"{plain:7.2f} s  {name} in PyTorch float32",
    ]
    same = f"{100 * agreement:.1f} % {answer_type.agreement_name}"
    result = f"{own:7.2f} s  {output} in {title} {runner.dtype}, {same}: {plain / own:.1f} × as fast as PyTorch"
    if baseline is None:
        return MeasuredSpeed(plain / own, None, "\n".join([*lines, result]))
    full, shared = _seconds(timings.full[1], on_cpu), float(np.mean([*baseline.agrees.values()]))
    same = f"{100 * shared:.1f} % {answer_type.agreement_name}"
    lines += [
        f"{full:7.2f} s  ordinary int8: {name} in {title} {baseline.runner.dtype}, {same}",
        f"{result}, {full / own:.1f} × as fast as ordinary int8",
    ]
    if equal is None:
        lines.append(f"           {output} does not reach the agreement of ordinary int8 with any threshold")
    else:
        setting, seconds = equal[0], _seconds(equal[1], on_cpu)
        policy = f"`policy='{setting.short}'`, the agreement of ordinary int8, no guarantee"
        lines.append(f"{seconds:7.2f} s  {output} with {policy}: {full / seconds:.1f} × as fast as ordinary int8")
    if own > full:
        changed, risk = f"{100 * (1 - shared):.1f} %", f"the risk of {100 * plan.guarantee.risk:g} %"
        comparison = "more" if 1 - shared > plan.guarantee.risk else "less"
        lines.append(
            f"Ordinary int8 is faster here. It has {changed} {answer_type.change_name}, {comparison} than {risk}, and "
            "has no guarantee."
        )
    return MeasuredSpeed(plain / own, full / own, "\n".join(lines))


def _seconds(timing: Seconds, on_cpu: bool) -> float:
    return timing.cpu if on_cpu else timing.wall
