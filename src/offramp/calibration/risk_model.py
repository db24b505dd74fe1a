"""Fit the risk model of the policy `risk`: per exit, logistic regression from its log-odds to the risk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from offramp.calibration.risks import Risk
from offramp.core.stepper import ModelSpec, RiskParameters
from offramp.evaluation.traces.trace import Trace
from offramp.policies import Memory

__all__ = ["certainty_inputs", "fit_curves", "fit_risk_model", "with_placeholder_risk_model"]

PRIOR = 0.5  # weight of two extra rows, one with and one without loss, at the lowest log-odds: keeps the fit finite
SLOPE_PENALTY = 0.05  # weight of the squared slope


def fit_risk_model(risk: Risk) -> RiskParameters:
    """Fit the risk model of all early exits on these rows."""
    changes = risk.changes_per_exit()[:, :-1]
    group = risk.trace.group  # a window counts as changed if its text is
    return fit_curves(certainty_inputs(risk.trace), changes if group is None else changes[np.asarray(group)])


def with_placeholder_risk_model(model_spec: ModelSpec) -> ModelSpec:
    """Return the model spec with a placeholder, as if a risk model had been fitted."""
    num_early = len(model_spec.exits) - 1
    return replace(model_spec, risk_model=((0.0,) * num_early, (1.0,) * num_early))


def certainty_inputs(trace: Trace) -> NDArray[np.float64]:
    """Return the input of the risk model at every early exit, (rows, early exits), as the policy computes it."""
    memory: Memory | None = None
    per_exit = []
    for output in trace.outputs()[:-1]:
        log_odds, memory = output.answer_type.log_odds(output.logits.float(), memory)
        per_exit.append(log_odds.numpy())
    return np.stack(per_exit, 1).astype(np.float64)


def fit_curves(log_odds: NDArray[np.float64], losses: NDArray[Any]) -> RiskParameters:
    """Fit one curve per column; a loss below 0 (a prediction that became right) counts as 0."""
    curves = [_fit_curve(log_odds[:, index], np.clip(losses[:, index], 0, 1)) for index in range(log_odds.shape[1])]
    offsets, slopes = zip(*curves, strict=True)
    return offsets, slopes


def _fit_curve(log_odds: NDArray[np.float64], losses: NDArray[Any]) -> tuple[float, float]:
    """Return offset and slope of 1 / (1 + exp(slope · log_odds − offset)), by penalized maximum likelihood."""
    lowest = float(log_odds.min())
    x = np.concatenate([log_odds, [lowest, lowest]])
    y = np.concatenate([losses, [0.0, 1.0]])
    weights = np.concatenate([np.ones(len(log_odds)), [PRIOR, PRIOR]])

    def objective(curve: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logit = curve[0] - curve[1] * x
        error = weights * (1 / (1 + np.exp(-np.clip(logit, -500, 500))) - y)
        value = (weights * (np.logaddexp(0, logit) - y * logit)).sum() + SLOPE_PENALTY * curve[1] ** 2
        return float(value), np.array([error.sum(), -(error * x).sum() + 2 * SLOPE_PENALTY * curve[1]])

    offset, slope = minimize(objective, np.zeros(2), jac=True, method="L-BFGS-B").x
    return float(f"{offset:.4g}"), float(f"{slope:.4g}")
