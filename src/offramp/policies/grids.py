"""Candidate settings of a policy, from safe to risky, fixed before any data are seen.

Probabilities concentrate near 1, so thresholds are evenly spaced in log-odds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from offramp.core.stepper import ModelSpec
from offramp.errors import BadValue
from offramp.policies import POLICIES
from offramp.policies.policy import Policy
from offramp.policies.spacing import SIZE

__all__ = ["applicable_policies", "fine_grid", "grid"]

PARTS = 3  # into which `fine_grid` divides every step of a grid


def applicable_policies(model_spec: ModelSpec) -> list[str]:
    """Return the names of the policies with a number to choose that apply to a model."""
    model_spec = replace(model_spec, faithful=False)
    names = []
    for name, policy_class in POLICIES.items():
        has_number = policy_class.rising is not None or policy_class.counts
        try:
            candidates = policy_class.settings(model_spec) if has_number else []
            for policy in candidates:
                policy.check(model_spec)
        except BadValue:
            continue
        names += [name] if candidates else []
    return names


def grid(
    name: str,
    model_spec: ModelSpec,
    *,
    thresholds: Sequence[float] | None = None,
    patience: Sequence[int] | None = None,
) -> list[Policy]:
    """Return the candidate settings of a policy for a model, from safe to risky.

    Args:
        name: name of the policy.
        model_spec: the model.
        thresholds: thresholds, instead of the default grid.
        patience: counts, instead of all.
    """
    policy_class = POLICIES[name]
    candidates = policy_class.settings(model_spec)
    if not candidates:
        available = ", ".join(applicable_policies(model_spec))
        raise BadValue(f"Policy {name!r} has no number to choose. Available: {available}.")
    if patience is not None and policy_class.counts:
        if model_spec.answer_type.needs_tolerance:
            raise BadValue("For a regression, patience varies the tolerance; remove `patience=`.")
        candidates = [policy_class.from_count(count) for count in sorted(patience, reverse=True)]
    elif thresholds is not None and policy_class.rising is not None:
        ordered = sorted(thresholds, reverse=not policy_class.rising)
        candidates = [candidates[0].with_threshold(float(threshold)) for threshold in ordered]
    for policy in candidates:
        policy.check(model_spec)
    return list(dict.fromkeys(candidates))


def fine_grid(name: str, model_spec: ModelSpec) -> list[Policy]:
    """Return the candidate settings of a policy with three times as many thresholds, for calibration."""
    policies = grid(name, model_spec)
    if len(policies) < SIZE // 2 or not hasattr(policies[0], "threshold"):  # counts, votes, tolerances
        return policies
    refined = policies[:1]
    for before, after in pairwise(policies):
        low, high = before.parameter, after.parameter
        assert low is not None and high is not None, "the settings of a grid have one threshold"
        values = [low + (high - low) * part / PARTS for part in range(1, PARTS)]
        refined += [before.with_threshold(float(f"{value:.5g}")) for value in values] + [after]
    return list(dict.fromkeys(refined))
