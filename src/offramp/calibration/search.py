"""Search a separate threshold for every exit: coordinate descent, for several prices of risk."""

from __future__ import annotations

import numpy as np

from offramp.calibration.risks import Risk
from offramp.core.stepper import ModelSpec
from offramp.errors import BadValue
from offramp.policies import POLICIES, Policy
from offramp.policies.grids import grid

__all__ = ["check_per_exit", "per_exit"]

PRICES = np.geomspace(1, 1000, 12)  # cost of one unit of risk, in units of the full model's cost
STEPS, ROUNDS = 24, 2


def check_per_exit(name: str, model_spec: ModelSpec) -> None:
    """Raise if the policy or the model has no threshold per exit."""
    if not POLICIES[name].per_exit:
        raise BadValue(f"Policy {name!r} has no threshold per exit; remove `per_exit=`.")
    if len(model_spec.exits) == 1:
        raise BadValue("This model has no early exits, so there are no thresholds per exit; remove `per_exit=`.")


def per_exit(risk: Risk, name: str, model_spec: ModelSpec) -> list[Policy]:
    """Return for every price the thresholds that minimize cost plus priced risk on these rows."""
    settings = grid(name, model_spec)
    settings = [settings[index] for index in np.linspace(0, len(settings) - 1, STEPS).astype(int)]
    base = settings[0]
    values = [policy.parameter or 0.0 for policy in settings]
    num_early = len(model_spec.exits) - 1
    policies = []
    for price in PRICES:
        best = min(values, key=lambda value: _objective(risk, base.with_threshold(value), price))
        chosen = [best] * num_early
        for _ in range(ROUNDS):
            for index in range(num_early):
                options = {value: (*chosen[:index], value, *chosen[index + 1 :]) for value in values}
                chosen[index] = min(
                    values, key=lambda value: _objective(risk, base.with_threshold(options[value]), price)
                )
        policies.append(base.with_threshold(tuple(chosen)))
    return list(dict.fromkeys(policies))


def _objective(risk: Risk, policy: Policy, price: float) -> float:
    replayed = risk.trace.replay(policy)
    return float(replayed.layer.mean()) / risk.trace.depth + price * max(0.0, float(risk.losses(replayed).mean()))
