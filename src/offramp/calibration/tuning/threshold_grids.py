"""The settings of a policy for a set of exits, from safe to risky, and which rows exit where under each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.risk_model import certainty_inputs, fit_curves
from offramp.core.stepper import RiskParameters, exit_points_on
from offramp.evaluation.traces.trace import Trace
from offramp.policies import POLICIES, Policy, RiskModel
from offramp.policies.grids import grid

__all__ = ["GROUPED", "TUNABLE", "ThresholdGrid", "threshold_grid", "with_exits"]

TUNABLE = tuple(name for name, policy in POLICIES.items() if policy.tunable)
GROUPED = tuple(name for name, policy in POLICIES.items() if policy.sees_groups)  # searched by `group_search.py`

ThresholdGrid = Callable[[Sequence[int]], tuple[list[Policy], NDArray[np.bool_]]]
"""From exit indices (the last exit included) to policies and which rows exit where, (policies, rows, early exits)."""


def threshold_grid(name: str, trace: Trace, losses: NDArray[Any]) -> ThresholdGrid:
    """Return a policy's threshold grid on these rows; `losses` has the loss of every row at every exit."""
    if name != RiskModel.name:
        return _by_score(trace, name)
    _, memory = trace.answer_type.log_odds(trace.outputs()[0].logits.float(), None)
    return _by_risk_per_set(trace, losses) if memory else _by_risk(trace, losses)


def _by_score(trace: Trace, name: str) -> ThresholdGrid:
    """The same thresholds for every set of exits."""
    policies, outputs = grid(name, trace.model_spec), trace.outputs()[:-1]
    exits = np.stack([np.stack([policy.step(output, None)[0].numpy() for output in outputs], 1) for policy in policies])
    return lambda exit_indices: (policies, exits[:, :, list(exit_indices[:-1])])


def _by_risk(trace: Trace, losses: NDArray[Any]) -> ThresholdGrid:
    """One risk model for all sets of exits."""
    log_odds = certainty_inputs(trace)
    risk_model = fit_curves(log_odds, losses[:, :-1])
    return lambda exit_indices: _risk_grid(log_odds, risk_model, list(exit_indices[:-1]), trace)


def _by_risk_per_set(trace: Trace, losses: NDArray[Any]) -> ThresholdGrid:
    """A separate risk model for every set of exits, if an exit is compared with the previous one."""

    def thresholds_for(exit_indices: Sequence[int]) -> tuple[list[Policy], NDArray[np.bool_]]:
        smaller = with_exits(trace, exit_indices)
        log_odds, num_early = certainty_inputs(smaller), len(exit_indices) - 1
        risk_model = fit_curves(log_odds, losses[:, list(exit_indices[:-1])])
        return _risk_grid(log_odds, risk_model, list(range(num_early)), smaller)

    return thresholds_for


def with_exits(trace: Trace, exit_indices: Sequence[int]) -> Trace:
    """Return the trace of a model that has only these exits."""
    layers = [trace.points[index].layer for index in exit_indices]
    return replace(
        trace,
        about=trace.about | {"model": trace.about["model"] | {"layers": layers}},
        **{name: getattr(trace, name)[:, list(exit_indices)] for name in ("logits", "spent", "heads")},
    )


def _risk_grid(
    log_odds: NDArray[np.float64], risk_model: RiskParameters, early: list[int], trace: Trace
) -> tuple[list[Policy], NDArray[np.bool_]]:
    offsets, slopes = (np.asarray(parameters)[early] for parameters in risk_model)
    risks = 1 / (1 + np.exp(np.clip(slopes * log_odds[:, early] - offsets, -500, 500)))
    layers = [*(trace.points[index].layer for index in early), trace.depth]
    model_spec = replace(
        trace.model_spec, exits=exit_points_on(layers), risk_model=(tuple(offsets.tolist()), tuple(slopes.tolist()))
    )
    policies = grid(RiskModel.name, model_spec)
    thresholds = np.array([policy.to_dict()["threshold"] for policy in policies])
    return policies, risks[None] < thresholds[:, None, None]
