"""Time policies and the plain encoder in turns on the same texts, tokenization included."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offramp.core.batch import Batch
from offramp.core.loop import run
from offramp.core.progress import Progress
from offramp.core.runner import Backend, Runner
from offramp.data.reading import Text
from offramp.policies import Policy

__all__ = ["Seconds", "Timings", "now", "time_policies", "timed_rows"]

ROWS, ROUNDS = 512, 3  # texts spread over the data; the median of the rounds counts, after one warm-up
MIN_ROUNDS, MAX_SECONDS = 1, 60.0  # no further round after this time
TOTAL_CHARACTERS, MAX_CHARACTERS = 250_000, 2_000  # of all timed texts, and of a text, the rest of which is truncated
MIN_ROWS, MIN_EXAMPLES = 64, 8


@dataclass(frozen=True)
class Seconds:
    """Median seconds of a pass over the timed rows."""

    wall: float
    cpu: float  # of all threads


@dataclass(frozen=True)
class Timings:
    """Median seconds for the same rows."""

    rows: NDArray[np.int64]  # indices of the timed rows
    full: list[Seconds]  # full-depth models; the first is the unmodified encoder with the last exit's head
    policies: list[Seconds]


def now(stepper: Backend) -> float:
    """Return the time to price a model by: CPU time with one thread, which other processes disturb less than wall time.

    On an accelerator, it is the time after its work is finished.
    """
    if stepper.device.type != "cpu":
        torch.accelerator.synchronize()
        return time.perf_counter()
    return time.process_time() if stepper.threads == 1 else time.perf_counter()


def timed_rows(texts: Sequence[Text]) -> NDArray[np.int64]:
    """Return the indices of the rows that are timed, spread over the data: fewer if the texts are long.

    A query counts with all its documents.
    """
    parts = [max(1, 1 if isinstance(text, str) else len(text) - 1) for text in texts]
    lengths = [len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts]
    sizes = [min(length, MAX_CHARACTERS * count) for length, count in zip(lengths, parts, strict=True)]
    fewest = max(MIN_EXAMPLES, int(MIN_ROWS / np.mean(parts)))
    rows = min(ROWS, len(texts), max(fewest, int(TOTAL_CHARACTERS / max(1.0, float(np.mean(sizes))))))
    return np.unique(np.linspace(0, len(texts) - 1, rows).astype(np.int64))


def time_policies(
    runner: Runner, texts: Sequence[Text], policies: Sequence[Policy], full: Sequence[Runner] = ()
) -> Timings:
    """Time every policy, and models at full depth: the plain encoder of `runner`, or those of other models (`full`)."""
    indices = timed_rows(texts)
    timed = [texts[index] for index in indices]
    full = full or [runner]
    entries: list[tuple[Runner, Callable[[Batch], Tensor]]] = [(model, model.stepper.full_model) for model in full]
    entries += [(runner, partial(_run_policy, runner, policy)) for policy in policies]
    groups = [False] * len(full) + [policy.sees_groups for policy in policies]
    wall: list[list[float]] = [[] for _ in entries]
    cpu: list[list[float]] = [[] for _ in entries]
    turns = [(turn, index) for turn in range(ROUNDS + 1) for index in range(len(entries))]
    begin = time.monotonic()
    with Progress("Measuring the speed", len(turns) * len(timed), "texts") as progress:
        for turn, index in turns:
            if turn > MIN_ROUNDS and index == 0 and time.monotonic() - begin > MAX_SECONDS:
                break
            timed_runner, predict = entries[index]
            start, cpu_start = time.perf_counter(), time.process_time()
            for chunk in timed_runner.chunks(timed, progress=False, quiet=True, together=groups[index]):
                with timed_runner.stepper.inference_mode():
                    for batch in chunk.batches():
                        predict(batch).cpu()
                        progress.update(len(batch.ids))
            if turn:
                wall[index].append(time.perf_counter() - start)
                cpu[index].append(time.process_time() - cpu_start)
    medians = [Seconds(*map(statistics.median, rounds)) for rounds in zip(wall, cpu, strict=True)]
    return Timings(indices, medians[: len(full)], medians[len(full) :])


def _run_policy(runner: Runner, policy: Policy, batch: Batch) -> Tensor:
    return run(runner.stepper, batch, policy).logits
