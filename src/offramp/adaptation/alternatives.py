"""What is possible if a guarantee cannot be given: a larger risk, or more texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offramp.calibration.choice import choose_with_guarantee, describe_speedup
from offramp.calibration.risks import Guarantee, Risk
from offramp.evaluation.traces.trace import Trace
from offramp.policies.grids import grid

__all__ = ["suggest_alternatives"]

RISKS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
MAX_DEPTH = 0.95  # fraction of the full depth; smaller savings are not suggested
MAX_ROWS = 10_000_000


def suggest_alternatives(trace: Trace, guarantee: Guarantee, policy: str) -> str:
    """Return the smallest risk that saves layers on these rows, and the number of rows that this risk needs."""
    sentences = []
    for risk in (risk for risk in RISKS if risk > guarantee.risk):
        if (speedup := _possible(trace, replace(guarantee, risk=risk), policy)) is not None:
            sentences.append(f"A risk of {100 * risk:g} % would allow {speedup}.")
            break
    without = replace(guarantee, class_risk=None)
    if guarantee.class_risk is not None and (speedup := _possible(trace, without, policy)) is not None:
        sentences.append(f"Without a limit per class (`class_risk='none'`), {speedup} would be possible.")
    if (rows := _rows_needed(trace, guarantee, policy)) is not None:
        unit, tested = trace.answer_type.input_names, len(trace)
        if trace.clusters is not None:
            unit, tested = "groups", int(trace.clusters.max()) + 1
        goal = f"A risk of {100 * guarantee.risk:g} %"
        sentences.append(f"{goal} may be possible with about {rows:,} test {unit} instead of {tested:,}.")
    more = f"more training {trace.answer_type.input_names} may help"
    return " ".join(sentences) or f"The early exits differ from the model too often; {more}."


def _possible(trace: Trace, guarantee: Guarantee, policy: str) -> str | None:
    """Return the layers that a guarantee would save on these rows as text; None if it saves too few."""
    choice = choose_with_guarantee(trace, guarantee, grid(policy, trace.model_spec), "")
    if choice.policy is None:
        return None
    speedup = choice.evidence["speedup"]
    return describe_speedup(speedup) if speedup is None or speedup >= 1 / MAX_DEPTH else None


def _rows_needed(trace: Trace, guarantee: Guarantee, policy: str) -> int | None:
    """Return how many rows would pass the test at the lowest error rate of a setting that saves layers."""
    risk = Risk(guarantee, trace)
    rates = []
    for setting in grid(policy, trace.model_spec):
        replayed = trace.replay(setting)
        rate = float(np.clip(risk.losses(replayed), 0, 1).mean())
        if rate < guarantee.risk and replayed.layer.mean() < MAX_DEPTH * trace.depth:
            rates.append(rate)
    if not rates:
        return None
    rate, rows = min(rates), len(risk.order)
    while rows < MAX_ROWS:
        rows = int(rows * 1.25)
        if guarantee.passes_with(int(np.ceil(rate * rows)), rows):
            return int(float(f"{rows:.2g}"))
    return None
