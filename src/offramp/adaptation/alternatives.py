"""What is possible if a guarantee cannot be given: a larger risk, or more texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offramp.calibration.choice import CalibrationOptions, choose_with_guarantee, describe_speedup
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
        chosen, evidence = choose_with_guarantee(
            trace, replace(guarantee, risk=risk), CalibrationOptions((policy,)), ""
        )
        if chosen is not None and (evidence["speedup"] is None or evidence["speedup"] >= 1 / MAX_DEPTH):
            sentences.append(f"A risk of {100 * risk:g} % would allow {describe_speedup(evidence['speedup'])}.")
            break
    if (rows := _rows_needed(trace, guarantee, policy)) is not None:
        sentences.append(
            f"A risk of {100 * guarantee.risk:g} % may be possible with about {rows:,} test texts instead of "
            f"{len(trace):,}."
        )
    return " ".join(sentences) or "The early exits differ from the model too often; more training texts may help."


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
    rate, rows = min(rates), len(trace)
    while rows < MAX_ROWS:
        rows = int(rows * 1.25)
        errors = np.zeros(rows)
        errors[: int(np.ceil(rate * rows))] = 1
        if guarantee.p_value(errors) <= guarantee.level:
            return int(float(f"{rows:.2g}"))
    return None
