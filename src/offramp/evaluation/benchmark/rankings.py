"""The entries of a benchmark for a reranker: a call ranks the documents of one or more queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.answer import Answers, RowOutputs
from offramp.core.runner import Runner
from offramp.data.reading import Text
from offramp.evaluation.benchmark.entry import Entry
from offramp.policies import Policy

__all__ = ["RankingOutput", "fewer_documents", "rank_in_batches", "rank_with"]

PLAIN_BATCH = 32  # documents, as in sentence-transformers
FEWER = (1.0, 1.5, 2.0)  # fractions of documents that rivals rerank, relative to the layers with early exits

Rank = Callable[[Sequence[Any]], Answers]


@dataclass(frozen=True)
class RankingOutput:
    """Orders of all queries, the layers of their documents, and the seconds of every call."""

    answers: NDArray[Any]
    layers: NDArray[np.int64]
    seconds: list[float]


def rank_with(runner: Runner, policy: str | Policy, fraction: float, texts: Sequence[Text], size: int) -> RankingOutput:
    """Rank the first `fraction` of the documents of each query, `size` queries per call."""
    return _time_calls(lambda examples: runner.answer(examples, policy=policy, quiet=True), fraction, texts, size)


def rank_in_batches(runner: Runner, fraction: float, texts: Sequence[Text], size: int) -> RankingOutput:
    """Rank with the full model as sentence-transformers does: batches of documents of similar length."""

    def rank(examples: Sequence[Any]) -> Answers:
        (chunk,) = runner.chunks(examples, progress=False, quiet=True, chunk=len(examples))
        logits = np.empty((len(chunk.rows), runner.config.num_labels), np.float32)
        with runner.stepper.inference_mode():
            for rows, batch in chunk.batches_of(PLAIN_BATCH):
                logits[rows] = runner.stepper.full_model(batch).float().numpy()
        deepest = np.full(len(logits), runner.config.num_layers)
        return runner.decode(RowOutputs(logits, deepest, deepest), chunk.rows)

    return _time_calls(rank, fraction, texts, size)


def _time_calls(rank: Rank, fraction: float, texts: Sequence[Text], size: int) -> RankingOutput:
    orders: list[NDArray[Any]] = []
    layers: list[NDArray[Any]] = []
    seconds = []
    for first in range(0, len(texts), size):
        examples = [_shortened(text, fraction) for text in texts[first : first + size]]
        start = perf_counter()
        answers: Any = rank(examples)
        seconds.append(perf_counter() - start)
        orders += list(answers.values)
        layers += list(answers.layers)
    values = np.full((len(orders), max(map(len, orders))), -1)
    for row, order in zip(values, orders, strict=True):
        row[: len(order)] = order
    return RankingOutput(values, np.concatenate(layers), seconds)


def _shortened(example: Any, fraction: float) -> Any:
    return example[: 1 + max(1, round(fraction * (len(example) - 1)))]


def fewer_documents(entries: Sequence[Entry], fraction: float) -> list[Entry]:
    """Return the int8 models at full depth on the first documents only: at about the cost of the early exits, and more.

    `fraction` is that of the layers that run with early exits.
    """
    rivals = []
    for entry in (entry for entry in entries if entry.dtype.startswith("int8") and entry.layers is None):
        for factor in FEWER:
            share = min(1.0, factor * fraction)
            name = f"{entry.name}, first {100 * share:.0f} % of the documents"
            rivals += [replace(entry, name=name, documents=share)] if share < 1 else []
    return rivals
