"""The numbers worth trying for a policy, from safe to risky, fixed before any data are seen.

Probabilities crowd near certainty, so thresholds are spaced evenly in log-odds, not evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from offramp.core.stepper import Shape
from offramp.errors import BadValue
from offramp.policies import (
    POLICIES,
    Confidence,
    Entropy,
    Judged,
    Layer,
    Learned,
    Margin,
    Patience,
    PatienceConfidence,
    Policy,
    Vote,
)
from offramp.policies.judged import NO_JUDGE

__all__ = ["SIZE", "fitting", "grid", "parameter"]

SIZE = 200  # points of a curve
CERTAIN = 9.0  # log-odds beyond which a probability counts as certain
TOLERANCES = (1e-3, 10.0)  # of a regression, in the units of the answer


def fitting(shape: Shape) -> list[str]:
    """The policies with a number to choose that can serve a model, whatever an original would have allowed."""
    shape = replace(shape, faithful=False)
    names = []
    for kind, make in MAKERS.items():
        try:
            for policy in make(shape):
                policy.check(shape)
        except BadValue:
            continue
        names += [kind.name] if kind is not Layer else []
    return names


def grid(
    name: str, shape: Shape, *, thresholds: Sequence[float] | None = None, patience: Sequence[int] | None = None
) -> list[Policy]:
    """Policies of one kind, from safe to risky; by default a grid that suits the model."""
    kind = POLICIES[name]
    if kind not in MAKERS:
        raise BadValue(f"Policy {name!r} has no number to choose; take one of {', '.join(fitting(shape))}.")
    made = MAKERS[kind](shape)
    if patience is not None and kind is Patience:
        if shape.answer_type.is_regression:
            raise BadValue("A regression's patience is drawn over the tolerance; leave --patience out.")
        made = [Patience(count) for count in sorted(patience, reverse=True)]
    elif thresholds is not None and kind not in (Patience, Layer):
        rising = kind in (Entropy, PatienceConfidence, Learned, Judged)  # a larger threshold lets more leave
        made = [made[0].with_threshold(float(number)) for number in sorted(thresholds, reverse=not rising)]
    for policy in made:
        policy.check(shape)
    return list(dict.fromkeys(made))


def parameter(policy: Policy) -> float | None:
    """The number that a curve is drawn over."""
    for name in ("tolerance", "threshold", "patience", "layer"):
        value = getattr(policy, name, None)
        if value is not None and not isinstance(value, tuple):
            return float(value)
    return None


def _log_odds(first: float, last: float, count: int = SIZE - 2) -> list[float]:
    return [float(f"{value:.5g}") for value in 1 / (1 + np.exp(-np.linspace(first, last, count)))]


def _entropies(shape: Shape) -> list[float]:
    most = math.log(shape.answer_type.alternatives(shape.classes))
    return [0.0, *(float(f"{most * share:.4g}") for share in _log_odds(-CERTAIN, 5.0)), math.ceil(most * 1000) / 1000]


def _probabilities(shape: Shape) -> list[float]:
    """From certain to a guess."""
    others = shape.answer_type.alternatives(shape.classes) - 1
    return [1.0, *_log_odds(CERTAIN, -math.log(others))]


def _margins() -> list[float]:
    return [1.0, *(float(f"{2 * p - 1:.5g}") for p in _log_odds(CERTAIN, 0.0)), 0.0]


def _patience(shape: Shape) -> list[Policy]:
    if shape.answer_type.is_regression:
        patience = 2 if len(shape.exits) > 4 else 1  # comparisons that a shallow model has room for
        return [Patience(patience, float(f"{one:.4g}")) for one in np.geomspace(*TOLERANCES, SIZE)]
    return [Patience(count) for count in range(max(1, len(shape.exits) - 1), 0, -1)]


def _risks(shape: Shape) -> list[Policy]:
    if shape.judge is None:
        raise BadValue(NO_JUDGE)
    return [Judged(one, *shape.judge) for one in [0.0, *_log_odds(-CERTAIN, 1.0), 1.0]]


MAKERS: dict[type[Policy], Callable[[Shape], list[Policy]]] = {
    Entropy: lambda shape: [Entropy(one) for one in _entropies(shape)],
    Confidence: lambda shape: [Confidence(one) for one in _probabilities(shape)],
    Margin: lambda shape: [Margin(one) for one in _margins()],
    Patience: _patience,
    PatienceConfidence: lambda shape: [PatienceConfidence(2, one) for one in _entropies(shape)],
    Vote: lambda shape: [Vote(float(count)) for count in range(len(shape.exits), 0, -1)],
    Learned: lambda shape: [Learned(one) for one in [0.0, *_log_odds(-CERTAIN, CERTAIN), 1.0]],
    Judged: _risks,
    Layer: lambda shape: [Layer(point.layer) for point in reversed(shape.exits)],
}
