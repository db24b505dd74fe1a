"""What a segment costs on this machine, by how many rows go through it: measured, not counted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offramp.batching import Text
from offramp.policies import Policy
from offramp.runner import Runner

__all__ = ["Costs", "measure"]

ROUNDS = 7


@dataclass(frozen=True)
class Costs:
    """Seconds of every segment for a batch of so many rows, and of asking an exit and cutting rows out."""

    rows: NDArray[np.int64]  # (sizes,), ascending
    segments: NDArray[np.float64]  # (exits, sizes)
    asking: float  # an exit's decision, and the cut behind it

    def of(self, place: int, rows: NDArray[Any]) -> NDArray[np.float64]:
        """A segment's seconds for batches of so many rows; nobody costs nothing."""
        found = np.interp(rows, self.rows, self.segments[place])
        return np.where(np.asarray(rows) > 0, found, 0.0)


def measure(runner: Runner, texts: Sequence[Text], size: int, policy: Policy) -> Costs:
    """Run rows of the usual length through every segment, in batches of one to `size`."""
    chunk = next(iter(runner.chunks(texts, progress=False, quiet=True)))
    order = chunk.order
    stepper = runner.stepper
    sizes = np.unique([1, *np.geomspace(1, size, 6).round()]).astype(np.int64)
    spent = np.zeros((len(stepper.exits), len(sizes), ROUNDS))
    asking = []
    with stepper.answering():
        for turn in range(-1, ROUNDS):  # the first one warms up
            for column, rows in enumerate(sizes):
                middle = len(order) // 2 - int(rows) // 2
                some = order[max(0, middle) : max(0, middle) + int(rows)]
                table, real = chunk.ids.padded(some, chunk.pad)
                batch = {"input_ids": torch.from_numpy(table), "attention_mask": torch.from_numpy(real)}
                if chunk.types is not None:
                    batch["token_type_ids"] = torch.from_numpy(chunk.types.padded(some, 0)[0])
                if chunk.windows is not None:
                    batch["marks"] = torch.from_numpy(chunk.windows.marks.padded(some, 0)[0])
                state = stepper.embed(batch)
                for place, point in enumerate(stepper.exits):
                    start = time.perf_counter()
                    state, said = stepper.advance(state, point)
                    spent[place, column, turn] = time.perf_counter() - start
                    if point is not stepper.exits[-1]:
                        start = time.perf_counter()
                        policy.step(said, None)[0].numpy()
                        state = stepper.keep(state, np.arange(len(some)))
                        asking.append(time.perf_counter() - start)
    return Costs(sizes, np.median(spent, axis=2), float(np.median(asking)))
