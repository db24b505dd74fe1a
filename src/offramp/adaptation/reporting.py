"""Stage 3: the HTML report on the test texts, and the measured speed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from offramp.adaptation.exit_selection import ExitSelection
from offramp.adaptation.plan import AdaptPlan
from offramp.core.machine import cpu_name
from offramp.core.runner import Runner
from offramp.evaluation.evaluate import EvaluationOptions, build_results, plan_evaluation
from offramp.evaluation.points import Scorer
from offramp.report.page import render
from offramp.training.imitation.teacher import short_name

__all__ = ["MeasuredSpeed", "write_report"]

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class MeasuredSpeed:
    """Speed compared with the original model, on the same texts in the same process."""

    speedup: float
    sentence: str


def write_report(plan: AdaptPlan, selection: ExitSelection, runner: Runner) -> MeasuredSpeed:
    """Write `report.html`; return the speed compared with the original model."""
    data, original = plan.rows(plan.splits.test), replace(plan.model.runner(), name=plan.model_name)
    options = EvaluationOptions(live=True, tolerance=plan.guarantee.tolerance)
    scorer = Scorer(selection.trace, data.metrics, None, options.tolerance)
    results = build_results(scorer, runner, data, plan_evaluation(runner, options), options, against=original)
    results = replace(
        results,
        model=replace(results.model, name=str(plan.options.output)),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    (plan.new_folder / "report.html").write_text(render(results), encoding="utf-8")
    assert results.live is not None and results.plain_seconds is not None
    live = results.live[0]
    if live.measured_speedup < 1:
        logger.warning(
            "The adapted model is slower than the original on this machine; try another `batch=` or `backend=`."
        )
    threads = runner.stepper.threads
    return MeasuredSpeed(
        live.measured_speedup,
        f"{live.measured_speedup:.2f} × as fast as {short_name(plan.model_name)} in torch float32, measured on "
        f"{results.live_rows:,} of these texts: {live.seconds:.2f} s instead of {results.plain_seconds:.2f} s "
        f"({runner.backend}, {runner.dtype}, {threads} thread{'s' if threads > 1 else ''}, {cpu_name()}).",
    )
