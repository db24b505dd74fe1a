"""What a segment costs on this machine, by how many rows go through it: measured, not counted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.core.runner import Backend, Runner
from offramp.data.reading import Text
from offramp.policies import Policy

__all__ = ["Costs", "measure"]

ROUNDS = 7


@dataclass(frozen=True)
class Costs:
    """Seconds for a batch of so many rows: of the layers before each exit, of a cut, of an exit's decision."""

    rows: NDArray[np.int64]  # (sizes,), ascending
    layers: NDArray[np.float64]  # (exits, sizes), without what the cut costs
    cutting: NDArray[np.float64]  # (sizes,), one more segment: a call, a head
    asking: NDArray[np.float64]  # (sizes,), a decision, and rows cut out behind it

    def of(self, seconds: NDArray[np.float64], rows: NDArray[Any]) -> float:
        """What batches of so many rows pay of one of these prices; nobody pays nothing."""
        return float(np.interp(rows[rows > 0], self.rows, seconds).sum())


def measure(runner: Runner, uncut: Backend, texts: Sequence[Text], size: int, policy: Policy) -> Costs:
    """Run rows of the usual length through every segment, and through the model without cuts, one to `size` at once."""
    chunk = next(iter(runner.chunks(texts, progress=False, quiet=True)))
    stepper, order = runner.stepper, chunk.order
    sizes = np.unique(np.geomspace(1, min(size, len(order)), 6).round()).astype(np.int64)
    spent = np.zeros((len(stepper.exits), len(sizes), ROUNDS))
    whole = np.zeros((len(sizes), ROUNDS))
    asking = np.zeros((len(stepper.exits) - 1, len(sizes), ROUNDS))
    with stepper.answering():
        for thresholds_for in range(-1, ROUNDS):  # the first one warms up
            for column, rows in enumerate(sizes):
                first = (len(order) - int(rows)) // 2
                batch = chunk.batch(order[first : first + int(rows)])
                start = time.perf_counter()
                uncut.plain(batch)
                whole[column, thresholds_for] = time.perf_counter() - start
                state = stepper.embed(batch)
                for place, point in enumerate(stepper.exits):
                    start = time.perf_counter()
                    state, said = stepper.advance(state, point)
                    spent[place, column, thresholds_for] = time.perf_counter() - start
                    if point is not stepper.exits[-1]:
                        start = time.perf_counter()
                        policy.step(said, None)[0].numpy()
                        state = stepper.keep(state, np.arange(int(rows)))
                        asking[place, column, thresholds_for] = time.perf_counter() - start
    segments, full = np.median(spent, axis=2), np.median(whole, axis=1)
    cutting = np.maximum(0.0, (segments.sum(0) - full) / (len(segments) - 1))
    return Costs(sizes, np.maximum(segments - cutting, 0), cutting, np.median(asking, axis=(0, 2)))
