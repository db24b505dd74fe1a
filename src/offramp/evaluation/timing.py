"""Seconds, not layers: policies and the plain encoder take turns on the same texts, tokenising each time."""

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

__all__ = ["Race", "race"]

ROWS, ROUNDS = 512, 3  # texts spread over the data; the median of so many rounds, after one to warm up


@dataclass(frozen=True)
class Race:
    """Median seconds for the same rows."""

    places: NDArray[np.int64]  # of the rows that ran
    plain: float  # the unmodified encoder with the last exit's head
    seconds: list[float]  # of each policy


def race(
    runner: Runner, texts: Sequence[Text], policies: Sequence[Policy], rows: int = ROWS, against: Runner | None = None
) -> Race:
    """Time every policy and the plain encoder, which may be another model's (`against`)."""
    places = np.unique(np.linspace(0, len(texts) - 1, min(rows, len(texts))).astype(np.int64))
    some = [texts[place] for place in places]
    plain = against or runner
    ways: list[tuple[Runner, Callable[[Batch], Tensor]]] = [(plain, plain.stepper.plain)]
    ways += [(runner, partial(_leave, runner, policy)) for policy in policies]
    together = any(policy.sees_groups for policy in policies)
    spent: list[list[float]] = [[] for _ in ways]
    turns = [(turn, way) for turn in range(ROUNDS + 1) for way in range(len(ways))]
    for turn, way in tqdm(turns, unit=" passes", desc="timing", delay=2, leave=False, disable=None):
        which, answer = ways[way]
        start = time.perf_counter()
        for chunk in which.chunks(some, progress=False, quiet=True, together=together):
            with which.stepper.answering():
                for batch in chunk.batches():
                    answer(batch).cpu()
        if turn:
            spent[way].append(time.perf_counter() - start)
    full, *others = (statistics.median(seconds) for seconds in spent)
    return Race(places, full, others)


def _leave(runner: Runner, policy: Policy, batch: Batch) -> Tensor:
    return run(runner.stepper, batch, policy).logits
