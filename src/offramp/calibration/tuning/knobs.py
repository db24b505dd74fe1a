"""What may be turned for a set of exits: the settings of a policy, from safe to risky, and who would leave at each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.judge import fit, signals
from offramp.core.stepper import Judge, points_on
from offramp.evaluation.traces.trace import Trace
from offramp.policies import POLICIES, Judged, Policy
from offramp.policies.grids import grid

__all__ = ["TUNABLE", "Knob", "knob"]

TUNABLE = tuple(name for name, kind in POLICIES.items() if kind.tunable)

Knob = Callable[[Sequence[int]], tuple[list[Policy], NDArray[np.bool_]]]
"""For the places of exits (the last one included): policies, and who leaves at each, (policies, rows, early exits)."""


def knob(name: str, trace: Trace, losses: NDArray[Any]) -> Knob:
    """A policy's knob on these rows; `losses` are a row's at each exit."""
    if name != Judged.name:
        return _by_certainty(trace, name)
    _, remembered = trace.answer_type.log_odds(trace.outputs()[0].logits.float(), None)
    return _by_distance(trace, losses) if remembered else _by_risk(trace, losses)


def _by_certainty(trace: Trace, name: str) -> Knob:
    """One threshold, whatever the exits."""
    policies, said = grid(name, trace.shape), trace.outputs()[:-1]
    leaves = np.stack([np.stack([policy.step(one, None)[0].numpy() for one in said], 1) for policy in policies])
    return lambda places: (policies, leaves[:, :, list(places[:-1])])


def _by_risk(trace: Trace, losses: NDArray[Any]) -> Knob:
    """A judge per exit, fitted once."""
    sure = signals(trace)
    offsets, slopes = fit(sure, losses[:, :-1])
    return lambda places: _judged(sure, (offsets, slopes), list(places[:-1]), trace)


def _by_distance(trace: Trace, losses: NDArray[Any]) -> Knob:
    """What compares an exit with the one before it needs a risk model for every set of exits."""

    def turn(places: Sequence[int]) -> tuple[list[Policy], NDArray[np.bool_]]:
        some = _cut(trace, places)
        sure = signals(some)
        return _judged(sure, fit(sure, losses[:, list(places[:-1])]), list(range(len(places) - 1)), some)

    return turn


def _cut(trace: Trace, places: Sequence[int]) -> Trace:
    """The trace of a model that has only these exits."""
    layers = [trace.points[place].layer for place in places]
    return replace(
        trace,
        about=trace.about | {"model": trace.about["model"] | {"layers": layers}},
        **{name: getattr(trace, name)[:, list(places)] for name in ("logits", "spent", "heads")},
    )


def _judged(
    sure: NDArray[np.float64], judge: Judge, early: list[int], trace: Trace
) -> tuple[list[Policy], NDArray[np.bool_]]:
    offsets, slopes = (np.asarray(each)[early] for each in judge)
    risks = 1 / (1 + np.exp(np.clip(slopes * sure[:, early] - offsets, -500, 500)))
    layers = [*(trace.points[place].layer for place in early), trace.depth]
    shape = replace(trace.shape, exits=points_on(layers), judge=(tuple(offsets.tolist()), tuple(slopes.tolist())))
    policies = grid(Judged.name, shape)
    thresholds = np.array([policy.to_dict()["threshold"] for policy in policies])
    return policies, risks[None] < thresholds[:, None, None]
