"""The numbers worth trying for a policy, from safe to risky, fixed before any data are seen.

Probabilities crowd near certainty, so thresholds are spaced evenly in log-odds, not evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from offramp.errors import BadValue
from offramp.policies import (
    NO_LTE,
    POLICIES,
    Confidence,
    Entropy,
    Layer,
    Learned,
    Margin,
    Patience,
    PatienceConfidence,
    Policy,
    Vote,
)
from offramp.stepper import ExitPoint, Problem

__all__ = ["SIZE", "Shape", "fitting", "grid", "parameter"]

SIZE = 200  # points of a curve
CERTAIN = 9.0  # log-odds beyond which a probability counts as certain
TOLERANCES = (1e-3, 10.0)  # of a regression, in the units of the answer


@dataclass(frozen=True)
class Shape:
    """What a grid has to know of a model."""

    problem: Problem
    classes: int
    exits: tuple[ExitPoint, ...]
    lte: bool = False
    faithful: bool = False


def fitting(shape: Shape) -> list[str]:
    """The policies with a number to choose that can serve a model."""
    if shape.problem is Problem.REGRESSION:
        names = ["patience"]
    elif shape.problem is Problem.MULTI_LABEL:
        names = ["entropy", "confidence", "margin", "patience", "patience-confidence"]
    else:
        names = ["entropy", "confidence", "margin", "patience", "patience-confidence", "vote"]
    return [*names, "learned"] if shape.lte else names


def grid(
    name: str, shape: Shape, *, thresholds: Sequence[float] | None = None, patience: Sequence[int] | None = None
) -> list[Policy]:
    """Policies of one kind, from safe to risky; by default a grid that suits the model."""
    kind = POLICIES[name]
    if kind not in MAKERS:
        raise BadValue(f"Policy {name!r} has no number to choose; take one of {', '.join(fitting(shape))}.")
    if kind is Learned and not shape.lte:
        raise BadValue(NO_LTE)
    made = MAKERS[kind](shape)
    if patience is not None and kind is Patience:
        if shape.problem is Problem.REGRESSION:
            raise BadValue("A regression's patience is drawn over the tolerance; leave --patience out.")
        made = [Patience(one) for one in sorted(patience, reverse=True)]
    elif thresholds is not None and kind not in (Patience, Layer):
        rising = kind in (Entropy, PatienceConfidence, Learned)  # a larger threshold lets more leave
        made = [made[0].with_threshold(float(one)) for one in sorted(thresholds, reverse=not rising)]
    for policy in made:
        policy.check(shape.problem, shape.exits, shape.faithful)
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
    most = math.log(2 if shape.problem is Problem.MULTI_LABEL else max(2, shape.classes))
    return [0.0, *(float(f"{most * share:.4g}") for share in _log_odds(-CERTAIN, 5.0)), math.ceil(most * 1000) / 1000]


def _probabilities(shape: Shape) -> list[float]:
    """From certain to a guess."""
    others = 1 if shape.problem is Problem.MULTI_LABEL else max(1, shape.classes - 1)
    return [1.0, *_log_odds(CERTAIN, -math.log(others))]


def _margins() -> list[float]:
    return [1.0, *(float(f"{2 * p - 1:.5g}") for p in _log_odds(CERTAIN, 0.0)), 0.0]


def _patience(shape: Shape) -> list[Policy]:
    if shape.problem is Problem.REGRESSION:
        patience = 2 if len(shape.exits) > 4 else 1  # comparisons that a shallow model has room for
        return [Patience(patience, float(f"{one:.4g}")) for one in np.geomspace(*TOLERANCES, SIZE)]
    return [Patience(count) for count in range(max(1, len(shape.exits) - 1), 0, -1)]


MAKERS: dict[type[Policy], Callable[[Shape], list[Policy]]] = {
    Entropy: lambda shape: [Entropy(one) for one in _entropies(shape)],
    Confidence: lambda shape: [Confidence(one) for one in _probabilities(shape)],
    Margin: lambda shape: [
        Margin(one) for one in [1.0, *(float(f"{2 * p - 1:.5g}") for p in _log_odds(CERTAIN, 0.0)), 0.0]
    ],
    Patience: _patience,
    PatienceConfidence: lambda shape: [PatienceConfidence(2, one) for one in _entropies(shape)],
    Vote: lambda shape: [Vote(float(count)) for count in range(len(shape.exits), 0, -1)],
    Learned: lambda shape: [Learned(one) for one in [0.0, *_log_odds(-CERTAIN, CERTAIN), 1.0]],
    Layer: lambda shape: [Layer(point.layer) for point in reversed(shape.exits)],
}
