"""The order of testing: fixed-sequence Learn-then-Test, and for several knobs a Pareto search on other rows.

Settings are tested one after the other, the safest first, each at the full level; the first that fails ends it, and
the last that passed is the answer. Nothing is lost to the number of tests, and the risk need not be monotone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.risks import Risk
from offramp.policies import Policy

__all__ = ["Tested", "fixed_sequence", "pareto", "walk"]


@dataclass(frozen=True)
class Tested:
    """One setting, its losses in numbers, its p-value, its cost."""

    policy: Policy
    losses: float  # their sum: the number of errors where they are 0 and 1
    p_value: float
    mean_layers: float


def fixed_sequence(p_values: Iterable[float], level: float) -> int | None:
    """The place of the last p-value before the first that is above the level; None: not even the first passes."""
    last = None
    for place, p_value in enumerate(p_values):
        if not p_value <= level:
            break
        last = place
    return last


def walk(risk: Risk, policies: Sequence[Policy], order: NDArray[np.int64]) -> list[Tested]:
    """Test settings one after the other until one fails, which is then the last of the list."""
    tested = []
    for policy in policies:
        replayed = risk.trace.replay(policy)
        losses = risk.losses(replayed)[order]
        p_value = risk.guarantee.p_value(losses)
        tested.append(Tested(policy, float(losses.sum()), p_value, float(replayed.layer.mean())))
        if not p_value <= risk.guarantee.level:
            break
    return tested


def pareto(risk: Risk, policies: Sequence[Policy]) -> list[Policy]:
    """The settings that no other beats in both risk and cost on these rows, from safe to risky."""
    measured = []
    for place, policy in enumerate(policies):
        replayed = risk.trace.replay(policy)
        measured.append((float(risk.losses(replayed).mean()), float(replayed.layer.mean()), place))
    front, cheapest = [], float("inf")
    for _, layers, place in sorted(measured):
        if layers < cheapest:
            front.append(policies[place])
            cheapest = layers
    return front
