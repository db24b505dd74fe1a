"""Which exits to keep: every small set of them, each with its cheapest threshold within the risk, priced in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.tuning.costs import Costs
from offramp.calibration.tuning.threshold_grids import ThresholdGrid
from offramp.evaluation.traces.trace import Trace
from offramp.policies import Policy

__all__ = ["Candidate", "search"]

MOST = 4  # early exits that are kept at most
RISKIEST = 3
SAVES = 0.01  # of the rows leave early at least: what saves nothing is no candidate


@dataclass(frozen=True)
class Candidate:
    """A set of exits, by their places, the last one included; seconds per row as modelled, share of other answers."""

    places: tuple[int, ...]
    policy: Policy
    seconds: float
    risk: float


def search(
    trace: Trace,
    thresholds_for: ThresholdGrid,
    costs: Costs,
    size: int,
    losses: Any,
    risk: float,
    allowed: Sequence[int],
) -> list[Candidate]:
    """The best threshold of every set of exits, quickest first; what exceeds the risk on these rows is left out.

    `losses` is a row's loss if it left at each exit, (rows, exits); `allowed` are the places of early exits that may be
    kept.
    """
    order = np.argsort(trace.lengths, kind="stable")  # as they are batched
    found = []
    for places in _sets(allowed, len(trace.points) - 1):
        policies, leaves = thresholds_for(places)
        asked = np.concatenate([leaves, np.ones_like(leaves[:, :, :1])], axis=2)
        where = asked.argmax(2)  # (policies, rows): the first exit of the set that lets the row go
        each = losses[np.arange(trace.rows), np.asarray(places)[where]].mean(1)
        saves = (np.asarray(places)[where] < places[-1]).mean(1) >= SAVES
        fine = np.flatnonzero((each <= risk) & saves)
        fine = fine[-RISKIEST:]  # the cheapest is among the riskiest
        if len(fine):
            seconds = [_seconds(where[place][order], places, costs, size) for place in fine]
            best = int(np.argmin(seconds))
            found.append(Candidate(places, policies[fine[best]], seconds[best], float(each[fine[best]])))
    return sorted(found, key=lambda one: one.seconds)


def _sets(allowed: Sequence[int], last: int) -> Iterator[tuple[int, ...]]:
    for count in range(1, min(MOST, len(allowed)) + 1):
        for early in combinations(allowed, count):
            yield (*early, last)


def _seconds(where: NDArray[np.int64], places: tuple[int, ...], costs: Costs, size: int) -> float:
    """Of a row on average: rows in batches, each batch through the segments that somebody of it needs."""
    total, before = 0.0, 0
    pad = -len(where) % size
    table = np.concatenate([where, np.full(pad, -1)]).reshape(-1, size)
    for number, place in enumerate(places):
        still = (table >= number).sum(1)  # rows that reach this exit
        price = costs.layers[before : place + 1].sum(0) + costs.cutting
        total += costs.of(price if place == places[-1] else price + costs.asking, still)
        before = place + 1
    return total / len(where)
