"""Time policies and the plain encoder in turns on the same texts, tokenization included."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from offramp.core.batch import Batch
from offramp.core.loop import run
from offramp.core.runner import Runner
from offramp.data.reading import Text
from offramp.policies import Policy

__all__ = ["Timings", "time_policies"]

ROWS, ROUNDS = 512, 3  # texts spread over the data; the median of the rounds counts, after one warm-up


@dataclass(frozen=True)
class Timings:
    """Median seconds for the same rows."""

    rows: NDArray[np.int64]  # indices of the timed rows
    plain: float  # the unmodified encoder with the last exit's head
    seconds: list[float]  # per policy


def time_policies(
    runner: Runner, texts: Sequence[Text], policies: Sequence[Policy], rows: int = ROWS, against: Runner | None = None
) -> Timings:
    """Time every policy and the plain encoder, which may be that of another model (`against`)."""
    indices = np.unique(np.linspace(0, len(texts) - 1, min(rows, len(texts))).astype(np.int64))
    timed = [texts[index] for index in indices]
    plain = against or runner
    entries: list[tuple[Runner, Callable[[Batch], Tensor]]] = [(plain, plain.stepper.full_model)]
    entries += [(runner, partial(_run_policy, runner, policy)) for policy in policies]
    together = any(policy.sees_groups for policy in policies)
    seconds: list[list[float]] = [[] for _ in entries]
    turns = [(turn, index) for turn in range(ROUNDS + 1) for index in range(len(entries))]
    for turn, index in tqdm(turns, unit=" passes", desc="timing", delay=2, leave=False, disable=None):
        timed_runner, predict = entries[index]
        start = time.perf_counter()
        for chunk in timed_runner.chunks(timed, progress=False, quiet=True, together=together):
            with timed_runner.stepper.inference_mode():
                for batch in chunk.batches():
                    predict(batch).cpu()
        if turn:
            seconds[index].append(time.perf_counter() - start)
    plain_median, *medians = (statistics.median(rounds) for rounds in seconds)
    return Timings(indices, plain_median, medians)


def _run_policy(runner: Runner, policy: Policy, batch: Batch) -> Tensor:
    return run(runner.stepper, batch, policy).logits
