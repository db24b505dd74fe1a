"""Fit the judge of the policy `risk`: per exit a logistic curve from its certainty to how likely its answer differs."""

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

__all__ = ["fit", "fit_risk_model", "signals", "with_placeholder_risk_model"]

PRIOR = 0.5  # of a row that differs and of one that does not, both as unsure as can be: no curve runs away
STEEPEST = 0.05  # how much a slope's square costs


def fit_risk_model(risk: Risk) -> RiskParameters:
    """The judge of all early exits, from these rows."""
    return fit(signals(risk.trace), risk.at_every_exit()[:, :-1])


def with_placeholder_risk_model(model_spec: ModelSpec) -> ModelSpec:
    """A shape as it will be, once a judge is fitted."""
    early = len(model_spec.exits) - 1
    return replace(model_spec, risk_model=((0.0,) * early, (1.0,) * early))


def signals(trace: Trace) -> NDArray[np.float64]:
    """What the judge reads at every early exit, (rows, early exits), as the policy computes it."""
    memory: Memory | None = None
    each = []
    for output in trace.outputs()[:-1]:
        sure, memory = output.answer_type.log_odds(output.logits.float(), memory)
        each.append(sure.numpy())
    return np.stack(each, 1).astype(np.float64)


def fit(sure: NDArray[np.float64], losses: NDArray[Any]) -> RiskParameters:
    """One curve per column; a loss below 0 (an answer that became right) counts as none."""
    curves = [_curve(sure[:, place], np.clip(losses[:, place], 0, 1)) for place in range(sure.shape[1])]
    offsets, slopes = zip(*curves, strict=True)
    return offsets, slopes


def _curve(sure: NDArray[np.float64], lost: NDArray[Any]) -> tuple[float, float]:
    """Offset and slope of 1 / (1 + exp(slope · sure − offset)), by penalised maximum likelihood."""
    least = float(sure.min())
    x = np.concatenate([sure, [least, least]])
    y = np.concatenate([lost, [0.0, 1.0]])
    weights = np.concatenate([np.ones(len(sure)), [PRIOR, PRIOR]])

    def cost(curve: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        odds = curve[0] - curve[1] * x
        error = weights * (1 / (1 + np.exp(-np.clip(odds, -500, 500))) - y)
        value = (weights * (np.logaddexp(0, odds) - y * odds)).sum() + STEEPEST * curve[1] ** 2
        return float(value), np.array([error.sum(), -(error * x).sum() + 2 * STEEPEST * curve[1]])

    found = minimize(cost, np.zeros(2), jac=True, method="L-BFGS-B").x
    return float(f"{found[0]:.4g}"), float(f"{found[1]:.4g}")
