"""Thresholds of their own for every exit: found by descent, exit by exit, for several prices of risk."""

from __future__ import annotations

import numpy as np

from offramp.calibration.risks import Risk
from offramp.core.stepper import ModelSpec
from offramp.errors import BadValue
from offramp.policies import POLICIES, Policy
from offramp.policies.grids import grid

__all__ = ["check_per_exit", "per_exit"]

PRICES = np.geomspace(1, 1000, 12)  # what a unit of risk is worth in units of the full model's cost
STEPS, ROUNDS = 24, 2


def check_per_exit(name: str, model_spec: ModelSpec) -> None:
    """Refuse policies and models without a threshold for every exit."""
    if not POLICIES[name].per_exit:
        raise BadValue(f"Policy {name!r} has no threshold per exit; leave `per_exit=` out.")
    if len(model_spec.exits) == 1:
        raise BadValue("This model has no early exit to have a threshold; leave `per_exit=` out.")


def per_exit(risk: Risk, name: str, model_spec: ModelSpec) -> list[Policy]:
    """For each price the thresholds that make cost plus priced risk smallest on these rows."""
    tried = grid(name, model_spec)
    tried = [tried[place] for place in np.linspace(0, len(tried) - 1, STEPS).astype(int)]
    first = tried[0]
    values = [policy.parameter or 0.0 for policy in tried]
    early = len(model_spec.exits) - 1
    policies = []
    for price in PRICES:
        best = min(values, key=lambda value: _worth(risk, first.with_threshold(value), price))
        chosen = [best] * early
        for _ in range(ROUNDS):
            for place in range(early):
                options = {value: (*chosen[:place], value, *chosen[place + 1 :]) for value in values}
                chosen[place] = min(values, key=lambda value: _worth(risk, first.with_threshold(options[value]), price))
        policies.append(first.with_threshold(tuple(chosen)))
    return list(dict.fromkeys(policies))


def _worth(risk: Risk, policy: Policy, price: float) -> float:
    replayed = risk.trace.replay(policy)
    return float(replayed.layer.mean()) / risk.trace.depth + price * max(0.0, float(risk.losses(replayed).mean()))
