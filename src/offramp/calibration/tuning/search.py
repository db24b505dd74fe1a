"""Search which exits to keep: every small set of exits, with its fastest threshold within the risk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.limits import Limits
from offramp.calibration.tuning.costs import Costs, batch_sizes
from offramp.calibration.tuning.threshold_grids import ThresholdGrid
from offramp.calibration.tuning.windows import per_example
from offramp.evaluation.traces.trace import Trace
from offramp.policies import Policy

__all__ = ["Candidate", "estimate_seconds", "search"]

MAX_EARLY_EXITS = 4
NUM_RISKIEST = 3  # settings per set of exits whose time is estimated
MIN_EXITING = 0.01  # fraction of rows that must exit early


@dataclass(frozen=True)
class Candidate:
    """A set of exits with a policy setting, its estimated seconds per row and its risk."""

    exit_indices: tuple[int, ...]  # the last exit included
    policy: Policy
    seconds: float
    risk: float


def search(
    trace: Trace,
    thresholds_for: ThresholdGrid,
    costs: Costs,
    size: int,
    losses: Any,
    limits: Limits,
    risk: float,
    margin: float,
    allowed: Sequence[int],
) -> list[Candidate]:
    """Return the best threshold of every set of exits, fastest first, without sets that exceed the risk on these rows.

    Args:
        trace: the rows to search on.
        thresholds_for: the settings of a policy for a set of exits.
        costs: the measured times.
        size: rows per batch.
        losses: the loss of every row at every exit, (rows, exits).
        limits: the limits for classes and for a decision.
        risk: the guaranteed risk.
        margin: the fraction of the risk and of the limits to aim at, which leaves room for the test on other rows.
        allowed: indices of the early exits that may be kept.
    """
    order = np.argsort(trace.lengths, kind="stable")  # batches have rows of similar length
    lengths = trace.lengths[order]
    candidates = []
    for exit_indices in _sets(allowed, len(trace.points) - 1):
        policies, exits = thresholds_for(exit_indices)
        exits = np.concatenate([exits, np.ones_like(exits[:, :, :1])], axis=2)
        first = exits.argmax(2)  # (policies, rows): the first exit of the set where the row exits
        risks = per_example(losses[np.arange(trace.rows), np.asarray(exit_indices)[first]], trace).mean(1)
        saves = (np.asarray(exit_indices)[first] < exit_indices[-1]).mean(1) >= MIN_EXITING
        valid = np.flatnonzero((risks <= margin * risk) & saves)
        if trace.group is None:
            valid = _within_limits(valid, np.asarray(exit_indices)[first], limits, margin)
        valid = valid[-NUM_RISKIEST:]  # the fastest is among the riskiest
        if len(valid):
            seconds = [estimate_seconds(first[index][order], lengths, exit_indices, costs, size) for index in valid]
            best = int(np.argmin(seconds))
            policy, best_risk = policies[valid[best]], float(risks[valid[best]])
            candidates.append(Candidate(exit_indices, policy, seconds[best], best_risk))
    return sorted(candidates, key=lambda candidate: candidate.seconds)


def _within_limits(
    settings: NDArray[np.int64], exits: NDArray[np.int64], limits: Limits, margin: float
) -> NDArray[np.int64]:
    """Return the settings, from safe to risky, before the first that exceeds a limit, by bisection.

    `exits` has the exit of every row under every setting, (settings, rows).
    """
    low, high = 0, len(settings)
    if not len(limits):
        return settings
    while low < high:
        middle = (low + high + 1) // 2
        is_within = limits.within(exits[settings[middle - 1]], margin)
        low, high = (middle, high) if is_within else (low, middle - 1)
    return settings[:low]


def _sets(allowed: Sequence[int], last: int) -> Iterator[tuple[int, ...]]:
    for count in range(1, min(MAX_EARLY_EXITS, len(allowed)) + 1):
        for early in combinations(allowed, count):
            yield (*early, last)


def estimate_seconds(
    first: NDArray[np.int64], lengths: NDArray[np.int64], exit_indices: tuple[int, ...], costs: Costs, size: int
) -> float:
    """Return the mean seconds per row, in batches of `size` rows in this order.

    `first` has the position in `exit_indices` where every row exits.
    """
    total, start = 0.0, 0
    padding = -len(first) % size
    batches = np.concatenate([first, np.full(padding, -1)]).reshape(-1, size)
    batch_lengths = np.concatenate([lengths, np.zeros(padding, lengths.dtype)]).reshape(-1, size)
    for position, exit_index in enumerate(exit_indices):
        remaining = batches >= position  # rows of every batch that reach this exit
        longest = np.where(remaining, batch_lengths, 0).max(1)
        seconds = costs.layers[start : exit_index + 1].sum(0) + costs.segment_overhead
        seconds = seconds if exit_index == exit_indices[-1] else seconds + costs.exit_overhead
        total += float((batch_sizes(remaining.sum(1), longest) @ seconds).sum())
        start = exit_index + 1
    return total / len(first) + costs.encoding
