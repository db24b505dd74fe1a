"""The order of testing: fixed-sequence testing (Learn then Test), and a Pareto search over several threshold grids.

Settings are tested from safe to risky, each at the full level δ. Testing stops at the first setting that fails, and the
last one that passed is valid. This needs no correction for multiple tests, and the risk need not be monotone.

`guarantee.average` uses conformal risk control instead: a setting passes if (total loss + 1) / (rows + 1) ≤ α, where a
row's loss is the largest one up to this setting. The expected risk is then at most α, on average over calibrations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.risks import Risk
from offramp.evaluation.traces.trace import Replayed
from offramp.policies import Policy

__all__ = ["SettingResult", "fixed_sequence", "observed_risk", "pareto", "run_sequence"]


@dataclass(frozen=True)
class SettingResult:
    """One tested setting: its total loss, p-value and cost."""

    policy: Policy
    losses: float  # the sum; the number of errors if losses are 0 or 1
    p_value: float | None  # the largest of all tests; None with `average`
    mean_layers: float
    passed: bool
    failed: str | None = None  # the limit that it exceeds; None for the overall risk


def fixed_sequence(p_values: Iterable[float], level: float) -> int | None:
    """Return the index of the last p-value before the first one above the level; None if the first one is above it."""
    last = None
    for index, p_value in enumerate(p_values):
        if not p_value <= level:
            break
        last = index
    return last


def run_sequence(risk: Risk, policies: Sequence[Policy]) -> list[SettingResult]:
    """Test settings in order until one fails; the failed one is the last of the list."""
    tested, worst = [], WorstLosses(risk)
    for policy in policies:
        replayed = risk.trace.replay(policy)
        if risk.guarantee.average:
            p_value, failing = None, worst.failing(replayed)
        else:
            p_values = risk.p_values(replayed)
            p_value = float(p_values.max())
            failing = np.flatnonzero(~(p_values <= risk.guarantee.level))
        name = risk.limits.limits[failing[0] - 1].name if len(failing) and failing[0] > 0 else None
        losses, layers = float(risk.losses(replayed).sum()), float(replayed.layer.mean())
        tested.append(SettingResult(policy, losses, p_value, layers, not len(failing), name))
        if len(failing):
            break
    return tested


class WorstLosses:
    """For conformal risk control: the largest loss of every row among the settings so far."""

    def __init__(self, risk: Risk):
        self.risk = risk
        self.losses: NDArray[Any] = np.zeros(len(risk.trace))
        self.changed: NDArray[np.bool_] = np.zeros((len(risk.trace), len(risk.limits)), dtype=bool)

    def failing(self, replayed: Replayed) -> NDArray[np.int64]:
        """Return 0 if the overall risk is exceeded, and the numbers of the limits that are, from 1."""
        risk, guarantee = self.risk, self.risk.guarantee
        self.losses = np.maximum(self.losses, risk.losses(replayed))
        exceeded = [_bound(risk.units(self.losses)) > guarantee.risk]
        if len(risk.limits):
            counted, changed = risk.limit_changes(replayed)
            self.changed = self.changed | changed
            for index, limit in enumerate(risk.limits.limits):
                losses = risk.units(self.changed[:, index] * 1.0, counted[:, index])
                exceeded.append((_bound(losses) if limit.is_tested else float(losses.mean())) > limit.risk)
        return np.flatnonzero(exceeded)


def _bound(losses: NDArray[Any]) -> float:
    return float((losses.sum() + 1) / (len(losses) + 1))


def pareto(risk: Risk, policies: Sequence[Policy]) -> list[Policy]:
    """Return the settings on the Pareto front of risk and cost on these rows, from safe to risky.

    The risk of a setting is the largest ratio of an observed fraction to its limit.
    """
    measured = []
    for index, policy in enumerate(policies):
        replayed = risk.trace.replay(policy)
        measured.append((observed_risk(risk, replayed), float(replayed.layer.mean()), index))
    front, cheapest = [], float("inf")
    for _, layers, index in sorted(measured):
        if layers < cheapest:
            front.append(policies[index])
            cheapest = layers
    return front


def observed_risk(risk: Risk, replayed: Replayed) -> float:
    """Return the observed risk in units of the guaranteed one: the largest of the overall risk and of all limits."""
    overall = float(risk.losses(replayed).mean()) / risk.guarantee.risk
    if not len(risk.limits):
        return overall
    counted, changed = risk.limit_changes(replayed)
    rates = changed.sum(0) / np.maximum(counted.sum(0), 1)
    return max(overall, float((rates / risk.limits.risks).max()))
