"""The order of testing: fixed-sequence testing (Learn then Test), and a Pareto search over several threshold grids.

Settings are tested from safe to risky, each at the full level δ. Testing stops at the first setting that fails, and the
last one that passed is valid. This needs no correction for multiple tests, and the risk need not be monotone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.risks import Risk
from offramp.policies import Policy

__all__ = ["SettingResult", "fixed_sequence", "pareto", "run_sequence"]


@dataclass(frozen=True)
class SettingResult:
    """One tested setting: its total loss, p-value and cost."""

    policy: Policy
    losses: float  # the sum; the number of errors if losses are 0 or 1
    p_value: float
    mean_layers: float


def fixed_sequence(p_values: Iterable[float], level: float) -> int | None:
    """Return the index of the last p-value before the first one above the level; None if the first one is above it."""
    last = None
    for index, p_value in enumerate(p_values):
        if not p_value <= level:
            break
        last = index
    return last


def run_sequence(risk: Risk, policies: Sequence[Policy], order: NDArray[np.int64]) -> list[SettingResult]:
    """Test settings in order until one fails; the failed one is the last of the list."""
    tested = []
    for policy in policies:
        replayed = risk.trace.replay(policy)
        losses = risk.losses(replayed)[order]
        p_value = risk.guarantee.p_value(losses)
        tested.append(SettingResult(policy, float(losses.sum()), p_value, float(replayed.layer.mean())))
        if not p_value <= risk.guarantee.level:
            break
    return tested


def pareto(risk: Risk, policies: Sequence[Policy]) -> list[Policy]:
    """Return the settings on the Pareto front of risk and cost on these rows, from safe to risky."""
    measured = []
    for index, policy in enumerate(policies):
        replayed = risk.trace.replay(policy)
        measured.append((float(risk.losses(replayed).mean()), float(replayed.layer.mean()), index))
    front, cheapest = [], float("inf")
    for _, layers, index in sorted(measured):
        if layers < cheapest:
            front.append(policies[index])
            cheapest = layers
    return front
