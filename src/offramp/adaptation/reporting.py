"""Stage 3: the page about the texts that the guarantee was tested on, and the speed, measured."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from offramp.adaptation.choosing import Choice
from offramp.adaptation.plan import Plan
from offramp.core.machine import cpu_name
from offramp.core.runner import Runner
from offramp.evaluation.evaluate import EvaluationOptions, planned, scored
from offramp.evaluation.points import Scorer
from offramp.report.page import render
from offramp.training.imitation.teacher import called

__all__ = ["Measured", "report"]

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class Measured:
    """Seconds for the same texts, in one run."""

    speedup: float
    sentence: str


def report(plan: Plan, choice: Choice, runner: Runner) -> Measured:
    """Write `report.html`; what was measured against the original."""
    data, original = plan.rows(plan.parts.test), plan.model.runner()
    options = EvaluationOptions(live=True, tolerance=plan.guarantee.tolerance)
    scorer = Scorer(choice.trace, data.metrics, None, options.tolerance)
    results = scored(scorer, runner, data, planned(runner, options), options, against=original)
    results = replace(
        results,
        model=replace(results.model, name=str(plan.options.output)),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    (plan.new / "report.html").write_text(render(results), encoding="utf-8")
    assert results.live is not None and results.plain_seconds is not None
    live = results.live[0]
    if live.measured_speedup < 1:
        logger.warning(
            "Exiting early does not pay here: it takes longer than the model itself. See `batch=`, `backend=`."
        )
    threads = runner.stepper.threads
    return Measured(
        live.measured_speedup,
        f"{live.measured_speedup:.2f} × the speed of {called(plan.name)} in torch float32, measured "
        f"in one run on {results.live_rows:,} of these texts: {live.seconds:.2f} s instead of "
        f"{results.plain_seconds:.2f} s ({runner.backend}, {runner.dtype}, {threads} "
        f"thread{'s' if threads > 1 else ''}, {cpu_name()}).",
    )
