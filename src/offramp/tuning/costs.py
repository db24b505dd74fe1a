"""What a segment costs on this machine, by how many rows go through it: measured, not counted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.backends.segments import SegmentStepper
from offramp.batching import Text
from offramp.policies import Policy
from offramp.runner import Runner

__all__ = ["Costs", "measure"]

ROUNDS = 7


@dataclass(frozen=True)
class Costs:
    """Seconds for a batch of so many rows: of the layers before each exit, of a cut, of an exit's decision."""

    rows: NDArray[np.int64]  # (sizes,), ascending
    layers: NDArray[np.float64]  # (exits, sizes), without what the cut costs
    cutting: float  # one more segment: a call, a head
    asking: float  # a decision, and rows cut out behind it

    def of(self, place: int, rows: NDArray[Any]) -> NDArray[np.float64]:
        """The layers before an exit, for batches of so many rows; nobody costs nothing."""
        found = np.interp(rows, self.rows, self.layers[place])
        return np.where(np.asarray(rows) > 0, found, 0.0)


def measure(runner: Runner, uncut: SegmentStepper, texts: Sequence[Text], size: int, policy: Policy) -> Costs:
    """Run rows of the usual length through every segment, and through the model without cuts, one to `size` at once."""
    chunk = next(iter(runner.chunks(texts, progress=False, quiet=True)))
    stepper, order = runner.stepper, chunk.order
    sizes = np.unique(np.geomspace(1, min(size, len(order)), 6).round()).astype(np.int64)
    spent = np.zeros((len(stepper.exits), len(sizes), ROUNDS))
    whole = np.zeros((len(sizes), ROUNDS))
    asking = []
    with stepper.answering():
        for turn in range(-1, ROUNDS):  # the first one warms up
            for column, rows in enumerate(sizes):
                first = (len(order) - int(rows)) // 2
                batch = chunk.batch(order[first : first + int(rows)])
                start = time.perf_counter()
                uncut.plain(batch)
                whole[column, turn] = time.perf_counter() - start
                state = stepper.embed(batch)
                for place, point in enumerate(stepper.exits):
                    start = time.perf_counter()
                    state, said = stepper.advance(state, point)
                    spent[place, column, turn] = time.perf_counter() - start
                    if point is not stepper.exits[-1]:
                        start = time.perf_counter()
                        policy.step(said, None)[0].numpy()
                        state = stepper.keep(state, np.arange(int(rows)))
                        asking.append(time.perf_counter() - start)
    segments, full = np.median(spent, axis=2), np.median(whole, axis=1)
    cutting = max(0.0, float(np.median((segments.sum(0) - full) / (len(segments) - 1))))
    return Costs(sizes, np.maximum(segments - cutting, 0), cutting, float(np.median(asking)))
