"""Measure all entries in turns on the same texts: time with tokenization, quality and memory."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers import AnswerType
from offramp.core.progress import track
from offramp.data.reading import Text
from offramp.evaluation.benchmark.engines import ENGINES
from offramp.evaluation.benchmark.engines.engine import log_skipped
from offramp.evaluation.benchmark.entries import open_entry
from offramp.evaluation.benchmark.entry import Entry

__all__ = ["EntryResult", "measure_entries", "peak_memory", "warmup_texts"]

NUM_WARMUP = 32  # texts before the first round
MIN_AGREEMENT = 0.98  # of an entry that others are compared with


@dataclass(frozen=True)
class EntryResult:
    """The result of one entry at one batch size."""

    name: str
    adaptive: bool
    backend: str
    dtype: str
    batch: int
    throughput: float  # texts per second, median of the rounds
    spread: tuple[float, float]  # of the slowest and the fastest round
    p50_ms: float | None  # latency of one text, at batch size 1
    p95_ms: float | None
    p99_ms: float | None
    agreement: float  # with the full model in float32
    score: float | None
    mean_layers: float
    memory_mb: float | None = None

    @property
    def counts(self) -> bool:
        """Whether other entries are compared with it."""
        return self.agreement >= MIN_AGREEMENT


def measure_entries(
    entries: Sequence[Entry],
    model: str,
    texts: Sequence[Text],
    timed: Sequence[Text],
    sizes: Sequence[int],
    rounds: int,
    threads: int | None,
    quality: QualityScorer,
) -> list[EntryResult]:
    """Run every entry once on all texts for quality, then in turns on `timed` for speed, per batch size and round."""
    predictors, outputs = {}, {}
    for entry in track(entries, "Predicting", "models"):
        try:
            predictor = open_entry(entry, model, threads)
            outputs[entry] = predictor(texts, max(entry.batches or sizes))
        except Exception as err:
            if entry.backend not in ENGINES:
                raise
            log_skipped(entry.name, err)  # other libraries may fail here, such as torch.compile
        else:
            predictors[entry] = predictor
    entries, rows = list(predictors), []
    for size in sizes:
        running = [entry for entry in entries if entry.batches is None or size in entry.batches]
        seconds: dict[Entry, list[float]] = {entry: [] for entry in running}
        calls: dict[Entry, list[float]] = {entry: [] for entry in running}
        for entry in running:
            predictors[entry](warmup_texts(timed), size)
        turns = [(turn, entry) for turn in range(rounds) for entry in (running if turn % 2 else running[::-1])]
        for _, entry in track(turns, f"Measuring the speed at batch size {size}"):
            output = predictors[entry](timed, size)
            seconds[entry].append(sum(output.seconds))
            calls[entry] += output.seconds
        count = len(timed)
        rows += [
            _result(entry, size, count, seconds[entry], calls[entry], outputs[entry], quality) for entry in running
        ]
    return rows


def warmup_texts(texts: Sequence[Text]) -> Sequence[Text]:
    """Return the texts of a warm-up: a few, or so many queries that they have as many documents."""
    longest = max(1 if isinstance(text, str) else len(text) - 1 for text in texts)
    return texts[: max(1, NUM_WARMUP // longest)]


@dataclass(frozen=True)
class QualityScorer:
    """Compares predictions with those of the full float32 model, and with labels if there are any."""

    answer_type: AnswerType
    full: NDArray[Any]
    metric: Any = None  # a function from predictions to a score

    def agreement(self, answers: NDArray[Any]) -> float:
        """Return the fraction of predictions equal to the full model's; of rankings, the part of the top k that is."""
        return 1 - float(self.answer_type.changes(answers, self.full).mean())

    def score(self, answers: NDArray[Any]) -> float | None:
        """Return the main metric of the task; None without labels."""
        return None if self.metric is None else float(self.metric(answers))


def _result(
    entry: Entry, size: int, texts: int, seconds: list[float], calls: list[float], output: Any, quality: QualityScorer
) -> EntryResult:
    latencies = [1000 * float(np.percentile(calls, percentile)) if size == 1 else None for percentile in (50, 95, 99)]
    return EntryResult(
        entry.name,
        entry.adaptive,
        entry.backend,
        entry.dtype,
        size,
        texts / float(np.median(seconds)),
        (texts / max(seconds), texts / min(seconds)),
        latencies[0],
        latencies[1],
        latencies[2],
        quality.agreement(output.answers),
        quality.score(output.answers),
        float(output.layers.mean()),
    )


def peak_memory(entry: Entry, model: str, texts: Sequence[Text], size: int, threads: int | None) -> float:
    """Return the peak memory in MB of a process that loads one entry and runs it on the texts."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        peak = pool.apply(_measure_memory, (entry, model, list(texts), size, threads))
        pool.close()
        pool.join()
    return float(peak)


def _measure_memory(entry: Entry, model: str, texts: list[Text], size: int, threads: int | None) -> float:
    open_entry(entry, model, threads)(texts, size)
    status = Path("/proc/self/status")  # getrusage of a child starts at the peak of its parent
    if status.is_file():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
