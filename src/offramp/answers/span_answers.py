"""A question's answer, made of what an exit said about its windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.span import BEST, CHOICE, CONFIDENCE, LOW, NULL
from offramp.answers.span_windows import Windows

__all__ = ["Found", "answers_of", "golds_of", "located", "texts_of"]

Array = NDArray[Any]
SCORE, CHANCE, BEGIN, END = range(BEST.start, BEST.stop)
LEAST = LOW / 2  # below it nothing could be a span


@dataclass(frozen=True)
class Found:
    """Each question's answer: where it stands in its context, how probable its window finds it, and who said it."""

    begin: NDArray[np.int64]  # in characters; begin = end: there is none
    end: NDArray[np.int64]
    score: NDArray[np.float64]
    window: NDArray[np.int64]  # the row that it came from
    null: NDArray[np.float64]  # how much better "no answer" scores than the best span: SQuAD 2.0's `null_odds`


def located(summaries: Array, windows: Windows) -> Array:
    """The same with the best span's place in characters of its context; (windows, exits, …) or (windows, …)."""
    made = np.array(summaries, dtype=np.float32)
    rows = np.arange(len(made)).reshape(-1, *[1] * (made.ndim - 2))
    starts, ends = (made[..., column].astype(np.int64).clip(0) for column in (BEGIN, END))
    rows = np.broadcast_to(rows, starts.shape)
    made[..., BEGIN], made[..., END] = windows.spots(rows, starts, ends)
    return made


def answers_of(summaries: Array, owner: NDArray[np.int64], no_answer: float | None = None) -> Found:
    """The best span of each question's windows, (windows, columns) with places in characters; `owner` ascends.

    With a number for `no_answer` a question gets none where "no answer", at the window that finds it least likely,
    scores higher by more than that.
    """
    scores = np.asarray(summaries[:, SCORE], dtype=np.float64)
    nulls = np.asarray(summaries[:, NULL], dtype=np.float64).sum(1)
    order = np.lexsort((-scores, owner))  # stable: of equal scores the first window
    _, first = np.unique(owner[order], return_index=True)
    window = order[first]
    null = np.minimum.reduceat(nulls, np.flatnonzero(np.diff(owner, prepend=-1))) - scores[window]
    best = summaries[window]
    begin, end = (np.asarray(best[:, column], dtype=np.int64) for column in (BEGIN, END))
    chance = np.asarray(best[:, CHANCE], dtype=np.float64)
    empty = scores[window] <= LEAST
    if no_answer is not None:
        empty |= null > no_answer
        nothing = (best[:, CHOICE] == 0).all(-1)  # else it is a little less sure than the window's span
        chance = np.where(empty, np.where(nothing, best[:, CONFIDENCE], 1 - chance), chance)
    return Found(np.where(empty, 0, begin), np.where(empty, 0, end), chance, window, null)


def texts_of(found: Found, contexts: Sequence[str]) -> Array:
    """The answers in words, without space around them; an array of texts."""
    spans = zip(contexts, found.begin.tolist(), found.end.tolist(), strict=True)
    made = np.empty(len(found.begin), dtype=object)
    made[:] = [context[begin:end].strip() for context, begin, end in spans]
    return made


def golds_of(labels: Sequence[Any]) -> Array:
    """The right answers of each question as texts, in an array of tuples."""
    made = np.empty(len(labels), dtype=object)
    made[:] = [tuple(gold.text for gold in golds) for golds in labels]
    return made
