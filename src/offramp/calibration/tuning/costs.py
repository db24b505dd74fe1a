"""Measure the time of every segment of the model on this machine, by batch size."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offramp.core.progress import Progress
from offramp.core.runner import Backend, Runner
from offramp.data.reading import Text
from offramp.policies import Policy

__all__ = ["Costs", "measure"]

ROUNDS, MIN_ROUNDS = 7, 3
MAX_SECONDS = 15.0  # after the minimum of rounds


@dataclass(frozen=True)
class Costs:
    """Seconds by batch size: the layers before each exit, the overhead of a segment, the overhead of an exit."""

    rows: NDArray[np.int64]  # (sizes,), batch sizes in ascending order
    layers: NDArray[np.float64]  # (exits, sizes), without overhead
    segment_overhead: NDArray[np.float64]  # (sizes,), of one more segment: a call and a head
    exit_overhead: NDArray[np.float64]  # (sizes,), of a decision and of removing the rows that exit

    def total(self, seconds: NDArray[np.float64], rows: NDArray[Any]) -> float:
        """Return the total seconds of batches of these sizes, by interpolation; empty batches are free."""
        return float(np.interp(rows[rows > 0], self.rows, seconds).sum())


def _now(stepper: Backend) -> float:
    """Return the time, after an accelerator has finished its work."""
    if stepper.device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()


def measure(runner: Runner, undivided: Backend, texts: Sequence[Text], size: int, policy: Policy) -> Costs:
    """Time every segment and the undivided model on rows of median length, in batches of 1 to `size` rows."""
    chunk = next(iter(runner.chunks(texts, progress=False, quiet=True)))
    stepper, order = runner.stepper, chunk.order
    sizes = np.unique(np.geomspace(1, min(size, len(order)), 6).round()).astype(np.int64)
    segment_seconds = np.zeros((len(stepper.exits), len(sizes), ROUNDS))
    full_seconds = np.zeros((len(sizes), ROUNDS))
    exit_seconds = np.zeros((len(stepper.exits) - 1, len(sizes), ROUNDS))
    work = int(sizes.sum()) * (ROUNDS + 1)
    with stepper.inference_mode(), Progress("Measuring the exits", work, "rows") as progress:
        begin = time.monotonic()
        for turn in range(-1, ROUNDS):  # the first one is a warm-up
            if turn >= MIN_ROUNDS and time.monotonic() - begin > MAX_SECONDS:
                break
            rounds = turn + 1
            for column, rows in enumerate(sizes):
                first = (len(order) - int(rows)) // 2
                batch = chunk.batch(order[first : first + int(rows)])
                start = _now(stepper)
                undivided.full_model(batch)
                full_seconds[column, turn] = _now(stepper) - start
                state = stepper.embed(batch)
                for index, point in enumerate(stepper.exits):
                    start = _now(stepper)
                    state, output = stepper.advance(state, point)
                    segment_seconds[index, column, turn] = _now(stepper) - start
                    if point is not stepper.exits[-1]:
                        start = _now(stepper)
                        policy.step(output, None)[0].numpy(force=True)
                        state = stepper.keep(state, np.arange(int(rows)))
                        exit_seconds[index, column, turn] = _now(stepper) - start
                progress.update(int(rows))
    segments, full = np.median(segment_seconds[..., :rounds], axis=2), np.median(full_seconds[:, :rounds], axis=1)
    overhead = np.maximum(0.0, (segments.sum(0) - full) / (len(segments) - 1))
    decisions = np.median(exit_seconds[..., :rounds], axis=(0, 2))
    return Costs(sizes, np.maximum(segments - overhead, 0), overhead, decisions)
