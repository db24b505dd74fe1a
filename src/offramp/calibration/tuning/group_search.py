"""Search which exits to keep for a policy over groups: small sets of exits, each with its fastest margin.

The rows of a group are decided together, so a setting is replayed instead of looked up. Sets grow one exit at a time:
only the fastest sets of a size are extended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.estimate_errors import fit_errors
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.tuning.costs import Costs, batch_sizes
from offramp.calibration.tuning.search import Candidate
from offramp.calibration.tuning.threshold_grids import with_exits
from offramp.evaluation.traces.trace import Replayed, Trace
from offramp.policies.grids import grid

__all__ = ["search_groups"]

MAX_EARLY_EXITS = 4
BEAM = 3  # sets of a size that are extended
MIN_EXITING = 0.01  # fraction of rows that must exit early


def search_groups(
    name: str, trace: Trace, guarantee: Guarantee, costs: Costs, margin: float, allowed: Sequence[int]
) -> list[Candidate]:
    """Return the fastest setting of sets of exits, fastest first, without sets that exceed the risk on these rows."""
    errors, last = fit_errors(trace), len(trace.points) - 1
    fastest: dict[tuple[int, ...], Candidate] = {}
    sets: list[tuple[int, ...]] = [(index,) for index in allowed]
    for _ in range(MAX_EARLY_EXITS):
        for early in sets:
            smaller = replace(with_exits(trace, (*early, last)), errors=tuple(errors[index] for index in early))
            candidate = _fastest(name, smaller, guarantee, costs, margin, (*early, last))
            if candidate is not None:
                fastest[early] = candidate
        best = sorted((early for early in sets if early in fastest), key=lambda early: fastest[early].seconds)[:BEAM]
        sets = sorted({tuple(sorted((*early, index))) for early in best for index in allowed if index not in early})
    return sorted(fastest.values(), key=lambda candidate: candidate.seconds)


def _fastest(
    name: str, trace: Trace, guarantee: Guarantee, costs: Costs, margin: float, exit_indices: tuple[int, ...]
) -> Candidate | None:
    """Return the riskiest setting within the risk, found by bisection; None if it exceeds it or saves nothing."""
    risk, settings = Risk(guarantee, trace), grid(name, trace.model_spec)
    low, high, best = 0, len(settings), None
    while low < high:
        middle = (low + high) // 2
        replayed = trace.replay(settings[middle])
        observed = float(np.mean(risk.losses(replayed)))
        if observed <= margin * guarantee.risk:
            low, best = middle + 1, (settings[middle], replayed, observed)
        else:
            high = middle
    if best is None or np.mean(best[1].exit < len(exit_indices)) < MIN_EXITING:
        return None
    seconds = _estimate_seconds(trace, best[1], exit_indices, costs)
    return Candidate(exit_indices, best[0], seconds, best[2])


def _estimate_seconds(trace: Trace, replayed: Replayed, exit_indices: tuple[int, ...], costs: Costs) -> float:
    """Return the mean seconds per row; every group is run in batches of rows of similar length."""
    order = np.lexsort((trace.lengths, np.asarray(trace.group)))
    group, lengths, exits = np.asarray(trace.group)[order], trace.lengths[order], replayed.exit[order]
    total, start = 0.0, 0
    for position, exit_index in enumerate(exit_indices):
        remaining = exits > position  # rows that reach this exit
        seconds = costs.layers[start : exit_index + 1].sum(0) + costs.segment_overhead
        seconds = seconds if exit_index == exit_indices[-1] else seconds + costs.exit_overhead
        sizes = batch_sizes(*_batches(group[remaining], lengths[remaining], costs.batch))
        total += float((sizes @ seconds).sum())
        start = exit_index + 1
    return (total + len(trace) * costs.encoding) / trace.rows


def _batches(
    group: NDArray[np.int64], lengths: NDArray[np.int64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and the longest row of the batches that groups are divided into; rows are sorted by group."""
    if not len(group):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first = np.flatnonzero(np.diff(group, prepend=group[0] - 1))  # of every group
    number = np.arange(len(group)) - np.repeat(first, np.diff([*first, len(group)]))  # of a row in its group
    starts = np.flatnonzero(number % size == 0)
    return np.diff([*starts, len(group)]), np.maximum.reduceat(lengths, starts)
