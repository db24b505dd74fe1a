"""Contestants take turns on the same texts, tokenising each time; seconds, answers and memory of each."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from offramp.answers import AnswerType
from offramp.data.reading import Text
from offramp.evaluation.benchmark.entries import Entry, open_entry

__all__ = ["Row", "peak_memory", "race"]

WARM = 32  # texts before the first round
LEAST = 0.98  # agreement below which nobody is compared with


@dataclass(frozen=True)
class Row:
    """One contestant at one batch size."""

    name: str
    adaptive: bool
    backend: str
    dtype: str
    batch: int
    throughput: float  # texts a second, the median of the rounds
    spread: tuple[float, float]  # of the slowest and the quickest round
    p50_ms: float | None  # of one text, at batch 1
    p95_ms: float | None
    p99_ms: float | None
    agreement: float  # with the full model in float32
    score: float | None
    mean_layers: float
    memory_mb: float | None = None

    @property
    def counts(self) -> bool:
        """Whether others are compared with it."""
        return self.agreement >= LEAST


def race(
    entries: Sequence[Entry],
    model: str,
    texts: Sequence[Text],
    timed: Sequence[Text],
    sizes: Sequence[int],
    rounds: int,
    threads: int | None,
    quality: QualityScorer,
) -> list[Row]:
    """Everybody answers all texts once, for quality; then some of them, size by size, round by round, for seconds."""
    ways = {entry: open_entry(entry, model, threads) for entry in tqdm(entries, "loading", leave=False, disable=None)}
    answered = {}
    for entry in tqdm(entries, "answering", leave=False, disable=None):
        answered[entry] = ways[entry](texts, max(entry.batches or sizes))
    rows = []
    for size in sizes:
        running = [entry for entry in entries if entry.batches is None or size in entry.batches]
        seconds: dict[Entry, list[float]] = {entry: [] for entry in running}
        calls: dict[Entry, list[float]] = {entry: [] for entry in running}
        for entry in running:
            ways[entry](timed[:WARM], size)
        turns = [(turn, entry) for turn in range(rounds) for entry in (running if turn % 2 else running[::-1])]
        for _, entry in tqdm(turns, f"batch {size}", unit=" passes", leave=False, disable=None):
            ran = ways[entry](timed, size)
            seconds[entry].append(sum(ran.seconds))
            calls[entry] += ran.seconds
        count = len(timed)
        rows += [_row(entry, size, count, seconds[entry], calls[entry], answered[entry], quality) for entry in running]
    return rows


@dataclass(frozen=True)
class QualityScorer:
    """What answers are compared with: the full model's in float32, and labels where there are some."""

    answer_type: AnswerType
    full: NDArray[Any]
    metric: Any = None  # from answers to a score

    def agreement(self, logits: NDArray[Any]) -> float:
        """The share of answers like the full model's."""
        return 1 - float(self.answer_type.differ(self.answer_type.answers(logits), self.full).mean())

    def score(self, logits: NDArray[Any]) -> float | None:
        """The task's."""
        return None if self.metric is None else float(self.metric(self.answer_type.answers(logits)))


def _row(
    entry: Entry, size: int, texts: int, seconds: list[float], calls: list[float], ran: Any, quality: QualityScorer
) -> Row:
    alone = [1000 * float(np.percentile(calls, share)) if size == 1 else None for share in (50, 95, 99)]
    return Row(
        entry.name,
        entry.adaptive,
        entry.backend,
        entry.dtype,
        size,
        texts / float(np.median(seconds)),
        (texts / max(seconds), texts / min(seconds)),
        alone[0],
        alone[1],
        alone[2],
        quality.agreement(ran.logits),
        quality.score(ran.logits),
        float(ran.layers.mean()),
    )


def peak_memory(entry: Entry, model: str, texts: Sequence[Text], size: int, threads: int | None) -> float:
    """The most memory in MB of a process that loads one contestant and answers some texts with it."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        most = pool.apply(_measured, (entry, model, list(texts), size, threads))
        pool.close()
        pool.join()  # it ends by itself, and leaves nothing behind
    return float(most)


def _measured(entry: Entry, model: str, texts: list[Text], size: int, threads: int | None) -> float:
    open_entry(entry, model, threads)(texts, size)
    status = Path("/proc/self/status")  # what getrusage tells of a child begins with its parent's
    if status.is_file():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
