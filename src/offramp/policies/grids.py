"""Settings worth trying for a policy, from safe to risky, fixed before any data are seen.

Probabilities crowd near certainty, so thresholds are spaced evenly in log-odds, not evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from offramp.core.stepper import Shape
from offramp.errors import BadValue
from offramp.policies import POLICIES
from offramp.policies.policy import Policy

__all__ = ["fitting", "grid"]


def fitting(shape: Shape) -> list[str]:
    """The policies with a number to choose that can serve a model, whatever an original would have allowed."""
    shape = replace(shape, faithful=False)
    names = []
    for name, kind in POLICIES.items():
        try:
            made = kind.settings(shape) if kind.rising is not None or kind.counts else []
            for policy in made:
                policy.check(shape)
        except BadValue:
            continue
        names += [name] if made else []
    return names


def grid(
    name: str, shape: Shape, *, thresholds: Sequence[float] | None = None, patience: Sequence[int] | None = None
) -> list[Policy]:
    """Policies of one kind, from safe to risky; by default a grid that suits the model."""
    kind = POLICIES[name]
    made = kind.settings(shape)
    if not made:
        raise BadValue(f"Policy {name!r} has no number to choose; take one of {', '.join(fitting(shape))}.")
    if patience is not None and kind.counts:
        if shape.answer_type.needs_tolerance:
            raise BadValue("With a tolerance, patience is drawn over that; leave `patience=` out.")
        made = [kind.from_count(count) for count in sorted(patience, reverse=True)]
    elif thresholds is not None and kind.rising is not None:
        made = [made[0].with_threshold(float(number)) for number in sorted(thresholds, reverse=not kind.rising)]
    for policy in made:
        policy.check(shape)
    return list(dict.fromkeys(made))
