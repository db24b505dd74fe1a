"""Measure how long every segment of the model takes on this machine, by the number and the length of rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from offramp.core.chunks import Chunk
from offramp.core.progress import Progress
from offramp.core.runner import Backend, Runner
from offramp.data.reading import Text
from offramp.evaluation.timing import now
from offramp.policies import Policy

__all__ = ["Costs", "batch_sizes", "measure"]

ROUNDS, MIN_ROUNDS = 7, 3
MAX_SECONDS = 15.0  # after the minimum of rounds
QUANTILES = (0.05, 0.5, 0.95)  # of the lengths: long rows cost the most
MAX_TOKENS = 4096  # padded tokens in a measured batch


@dataclass(frozen=True)
class Costs:
    """Seconds of a batch: the layers before each exit, the overhead of a segment, the overhead of an exit.

    Each has four coefficients: per call, per row, per padded token, and per padded token times the length (attention).
    """

    layers: NDArray[np.float64]  # (exits, 4), without overhead
    segment_overhead: NDArray[np.float64]  # (4,), of one more segment: a call and a head
    exit_overhead: NDArray[np.float64]  # (4,), of a decision and of removing the rows that exit
    batch: int = 32  # rows per batch
    length: int = 32  # median length
    encoding: float = 0.0  # per text, or query with its documents, of tokenization and batching

    def select(self, exit_indices: Sequence[int]) -> Costs:
        """Return the costs of a model that has only these exits."""
        starts = [0, *(index + 1 for index in exit_indices[:-1])]
        layers = [self.layers[start : stop + 1].sum(0) for start, stop in zip(starts, exit_indices, strict=True)]
        return replace(self, layers=np.stack(layers))

    def row_seconds(self, coefficients: NDArray[np.float64], rows: int) -> float:
        """Return the seconds per row in a batch of rows of median length."""
        return float(batch_sizes(np.array([rows]), np.array([self.length]))[0] @ coefficients) / rows


def batch_sizes(rows: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.float64]:
    """Return what the coefficients are multiplied by, (batches, 4), for batches padded to `lengths`."""
    tokens = rows * lengths
    return np.stack([np.minimum(rows, 1), rows, tokens, tokens * lengths], axis=-1).astype(np.float64)


def measure(runner: Runner, undivided: Backend, texts: Sequence[Text], size: int, policy: Policy) -> Costs:
    """Time every segment and the undivided model on batches of 1 to `size` rows, of short, medium and long rows."""
    chunk, encoding = _encode(runner, texts, size)
    stepper, lengths = runner.stepper, chunk.rows.lengths[chunk.order]
    batches = [chunk.batch(rows) for rows in _measured_rows(chunk.order, lengths, size)]
    num_exits = len(stepper.exits)
    segment_seconds = np.zeros((num_exits, len(batches), ROUNDS))
    full_seconds = np.zeros((len(batches), ROUNDS))
    exit_seconds = np.zeros((num_exits - 1, len(batches), ROUNDS))
    work = sum(map(len, batches)) * (ROUNDS + 1)
    with stepper.inference_mode(), Progress("Measuring the exits", work, "rows") as progress:
        begin = time.monotonic()
        for turn in range(-1, ROUNDS):  # the first one is a warm-up
            if turn >= MIN_ROUNDS and time.monotonic() - begin > MAX_SECONDS:
                break
            rounds = turn + 1
            for column, batch in enumerate(batches):
                start = now(stepper)
                undivided.full_model(batch)
                full_seconds[column, turn] = now(stepper) - start
                state = stepper.embed(batch)
                for index, point in enumerate(stepper.exits):
                    start = now(stepper)
                    state, output = stepper.advance(state, point)
                    segment_seconds[index, column, turn] = now(stepper) - start
                    if point is not stepper.exits[-1]:
                        start = now(stepper)
                        policy.step(output, None)[0].numpy(force=True)
                        state = stepper.keep(state, np.arange(len(batch)))
                        exit_seconds[index, column, turn] = now(stepper) - start
                progress.update(len(batch))
    segments, full = np.median(segment_seconds[..., :rounds], axis=2), np.median(full_seconds[:, :rounds], axis=1)
    overhead = np.maximum(0.0, (segments.sum(0) - full) / max(1, num_exits - 1))
    decisions = np.median(exit_seconds[..., :rounds], axis=(0, 2)) if num_exits > 1 else np.zeros(len(batches))
    sizes = batch_sizes(np.array([len(batch) for batch in batches]), np.array([batch.longest for batch in batches]))
    return Costs(
        np.stack([_fit(sizes, seconds) for seconds in np.maximum(segments - overhead, 0)]),
        _fit(sizes, overhead),
        _fit(sizes, decisions),
        min(size, len(texts)),
        int(np.median(lengths)),
        encoding,
    )


def _encode(runner: Runner, texts: Sequence[Text], size: int) -> tuple[Chunk, float]:
    """Return the texts as a chunk, and the seconds per text of tokenization and batching."""
    seconds = []
    for _ in range(MIN_ROUNDS):
        start = now(runner.stepper)
        chunk = next(iter(runner.chunks(texts, progress=False, quiet=True)))
        for _ in chunk.batches_of(size):
            pass
        seconds.append(now(runner.stepper) - start)
    return chunk, min(seconds) / len(chunk.examples)


def _measured_rows(order: NDArray[Any], lengths: NDArray[Any], size: int) -> list[NDArray[Any]]:
    """Return the rows of the batches to time; `lengths` are ascending, in this order of the rows."""
    groups = []
    for quantile in QUANTILES:
        middle = int(quantile * (len(order) - 1))
        most = max(1, min(size, len(order), MAX_TOKENS // int(lengths[middle])))
        for rows in np.unique(np.geomspace(1, most, 4).round()).astype(int):
            first = int(np.clip(middle - rows // 2, 0, len(order) - rows))
            groups.append(order[first : first + rows])
    return groups


def _fit(sizes: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients with the smallest relative errors; none is negative."""
    weights = 1 / np.maximum(seconds, 1e-3 * max(float(seconds.max()), 1e-9))
    scale = sizes.max(0)
    coefficients: NDArray[np.float64] = nnls(sizes / scale * weights[:, None], seconds * weights)[0] / scale
    return coefficients
