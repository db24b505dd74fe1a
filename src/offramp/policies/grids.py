"""Settings worth trying for a policy, from safe to risky, fixed before any data are seen.

Probabilities crowd near certainty, so thresholds are spaced evenly in log-odds, not evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from offramp.core.stepper import ModelSpec
from offramp.errors import BadValue
from offramp.policies import POLICIES
from offramp.policies.policy import Policy

__all__ = ["fitting", "grid"]


def fitting(model_spec: ModelSpec) -> list[str]:
    """The policies with a number to choose that can serve a model, whatever an original would have allowed."""
    model_spec = replace(model_spec, faithful=False)
    names = []
    for name, kind in POLICIES.items():
        try:
            made = kind.settings(model_spec) if kind.rising is not None or kind.counts else []
            for policy in made:
                policy.check(model_spec)
        except BadValue:
            continue
        names += [name] if made else []
    return names


def grid(
    name: str,
    model_spec: ModelSpec,
    *,
    thresholds: Sequence[float] | None = None,
    patience: Sequence[int] | None = None,
) -> list[Policy]:
    """Policies of one kind, from safe to risky; by default a grid that suits the model."""
    kind = POLICIES[name]
    made = kind.settings(model_spec)
    if not made:
        raise BadValue(f"Policy {name!r} has no number to choose; take one of {', '.join(fitting(model_spec))}.")
    if patience is not None and kind.counts:
        if model_spec.answer_type.needs_tolerance:
            raise BadValue("With a tolerance, patience is drawn over that; leave `patience=` out.")
        made = [kind.from_count(count) for count in sorted(patience, reverse=True)]
    elif thresholds is not None and kind.rising is not None:
        made = [made[0].with_threshold(float(number)) for number in sorted(thresholds, reverse=not kind.rising)]
    for policy in made:
        policy.check(model_spec)
    return list(dict.fromkeys(made))
