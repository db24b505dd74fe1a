"""What may be turned for a set of exits: the settings of a policy, from safe to risky, and who would leave at each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.risk_model import fit, signals
from offramp.core.stepper import RiskParameters, points_on
from offramp.evaluation.traces.trace import Trace
from offramp.policies import POLICIES, Policy, RiskModel
from offramp.policies.grids import grid

__all__ = ["TUNABLE", "ThresholdGrid", "threshold_grid"]

TUNABLE = tuple(name for name, kind in POLICIES.items() if kind.tunable)

ThresholdGrid = Callable[[Sequence[int]], tuple[list[Policy], NDArray[np.bool_]]]
"""For the places of exits (the last one included): policies, and who leaves at each, (policies, rows, early exits)."""


def threshold_grid(name: str, trace: Trace, losses: NDArray[Any]) -> ThresholdGrid:
    """A policy's threshold_grid on these rows; `losses` are a row's at each exit."""
    if name != RiskModel.name:
        return _by_certainty(trace, name)
    _, remembered = trace.answer_type.log_odds(trace.outputs()[0].logits.float(), None)
    return _by_distance(trace, losses) if remembered else _by_risk(trace, losses)


def _by_certainty(trace: Trace, name: str) -> ThresholdGrid:
    """One threshold, whatever the exits."""
    policies, said = grid(name, trace.model_spec), trace.outputs()[:-1]
    leaves = np.stack([np.stack([policy.step(one, None)[0].numpy() for one in said], 1) for policy in policies])
    return lambda places: (policies, leaves[:, :, list(places[:-1])])


def _by_risk(trace: Trace, losses: NDArray[Any]) -> ThresholdGrid:
    """A risk_model per exit, fitted once."""
    sure = signals(trace)
    offsets, slopes = fit(sure, losses[:, :-1])
    return lambda places: _judged(sure, (offsets, slopes), list(places[:-1]), trace)


def _by_distance(trace: Trace, losses: NDArray[Any]) -> ThresholdGrid:
    """What compares an exit with the one before it needs a risk model for every set of exits."""

    def thresholds_for(places: Sequence[int]) -> tuple[list[Policy], NDArray[np.bool_]]:
        some = _cut(trace, places)
        sure = signals(some)
        return _judged(sure, fit(sure, losses[:, list(places[:-1])]), list(range(len(places) - 1)), some)

    return thresholds_for


def _cut(trace: Trace, places: Sequence[int]) -> Trace:
    """The trace of a model that has only these exits."""
    layers = [trace.points[place].layer for place in places]
    return replace(
        trace,
        about=trace.about | {"model": trace.about["model"] | {"layers": layers}},
        **{name: getattr(trace, name)[:, list(places)] for name in ("logits", "spent", "heads")},
    )


def _judged(
    sure: NDArray[np.float64], risk_model: RiskParameters, early: list[int], trace: Trace
) -> tuple[list[Policy], NDArray[np.bool_]]:
    offsets, slopes = (np.asarray(each)[early] for each in risk_model)
    risks = 1 / (1 + np.exp(np.clip(slopes * sure[:, early] - offsets, -500, 500)))
    layers = [*(trace.points[place].layer for place in early), trace.depth]
    model_spec = replace(
        trace.model_spec, exits=points_on(layers), risk_model=(tuple(offsets.tolist()), tuple(slopes.tolist()))
    )
    policies = grid(RiskModel.name, model_spec)
    thresholds = np.array([policy.to_dict()["threshold"] for policy in policies])
    return policies, risks[None] < thresholds[:, None, None]
