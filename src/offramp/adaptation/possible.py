"""Where a guarantee cannot be made: what could be, so that an honest no is of use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offramp.calibration.choice import CalibrationOptions, choose_with_guarantee, fewer
from offramp.calibration.risks import Guarantee, Risk
from offramp.evaluation.traces.trace import Trace
from offramp.policies.grids import grid

__all__ = ["possible"]

RISKS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
SAVING = 0.95  # of the full depth: what saves less is not worth telling
MOST = 10_000_000


def possible(trace: Trace, guarantee: Guarantee, policy: str) -> str:
    """The least risk at which something is saved on these rows, and how many rows the wanted one would take."""
    words = []
    for risk in (one for one in RISKS if one > guarantee.risk):
        chosen, evidence = choose_with_guarantee(
            trace, replace(guarantee, risk=risk), CalibrationOptions((policy,)), ""
        )
        if chosen is not None and (evidence["speedup"] is None or evidence["speedup"] >= 1 / SAVING):
            words.append(f"At {100 * risk:g} % it would be {fewer(evidence['speedup'])}.")
            break
    if (rows := _rows_for(trace, guarantee, policy)) is not None:
        words.append(
            f"With about {rows:,} texts to test on instead of {len(trace):,}, {100 * guarantee.risk:g} % could do."
        )
    return " ".join(words) or "More texts to learn from may help; these exits differ too often."


def _rows_for(trace: Trace, guarantee: Guarantee, policy: str) -> int | None:
    """How many rows would pass, were the errors as rare as here at the cheapest setting within the risk."""
    losses = Risk(guarantee, trace)
    rates = []
    for setting in grid(policy, trace.model_spec):
        replayed = trace.replay(setting)
        rate = float(np.clip(losses.losses(replayed), 0, 1).mean())
        if rate < guarantee.risk and replayed.layer.mean() < SAVING * trace.depth:
            rates.append(rate)
    if not rates:
        return None
    rate, rows = min(rates), len(trace)
    while rows < MOST:
        rows = int(rows * 1.25)
        errors = np.zeros(rows)
        errors[: int(np.ceil(rate * rows))] = 1
        if guarantee.p_value(errors) <= guarantee.level:
            return int(float(f"{rows:.2g}"))
    return None
