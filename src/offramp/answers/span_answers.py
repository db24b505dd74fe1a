"""A question's answer, made of what an exit said about its windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.answer import Answer, Answers
from offramp.answers.overlap import f1
from offramp.answers.span_summary import BEST, CHOICE, CONFIDENCE, LOW, NULL
from offramp.core.batch import EncodedRows

__all__ = ["BestSpans", "SpanAnswer", "SpanAnswers", "best_no_answer", "best_spans", "located", "spots", "texts_of"]

Array = NDArray[Any]
SCORE, CHANCE, BEGIN, END = range(BEST.start, BEST.stop)
LEAST = LOW / 2  # below it nothing could be a span


@dataclass(frozen=True, slots=True)
class SpanAnswer(Answer):
    """A question's answer: `label` is a part of its context, from character `start` to `end`; empty: it has none there.

    `score` is the probability that the window which it came from gives it, `exit_layer` the deepest layer that one of
    the question's windows exited at.
    """

    start: int | None
    end: int | None

    @property
    def text(self) -> str:
        """The answer in words."""
        return str(self.label)

    def to_dict(self) -> dict[str, Any]:
        """As a line of a file has it."""
        place = {"answer": self.text, "score": round(self.score, 6), "start": self.start, "end": self.end}
        return place | {"exit_layer": self.exit_layer}


@dataclass(frozen=True)
class SpanAnswers(Answers):
    """Questions' answers, in the questions' order."""

    texts: NDArray[Any]
    scores: NDArray[np.float64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def __iter__(self) -> Iterator[Answer]:
        columns = (self.texts, self.scores, self.start, self.end, self.layer)
        for text, score, start, end, layer in zip(*(column.tolist() for column in columns), strict=True):
            yield SpanAnswer(text, score, layer, [score], (text,), start if text else None, end if text else None)

    @property
    def values(self) -> Array:
        """The texts."""
        return self.texts

    @property
    def score(self) -> NDArray[np.float64]:
        """As the windows give it."""
        return self.scores

    def excerpt(self, index: int, example: Any, longest: int) -> str | list[str]:
        """The question, and what stands around the answer."""
        question, context = example
        middle = int(self.start[index] + self.end[index]) // 2
        start = max(0, min(middle - longest // 2, len(context) - longest))
        return [question, f"{'… ' if start else ''}{context[start : start + longest]}"]


@dataclass(frozen=True)
class BestSpans:
    """Each question's answer: where it stands in its context, how probable its window finds it, and who said it."""

    begin: NDArray[np.int64]  # in characters; begin = end: there is none
    end: NDArray[np.int64]
    score: NDArray[np.float64]
    window: NDArray[np.int64]  # the row that it came from
    null: NDArray[np.float64]  # how much better "no answer" scores than the best span: SQuAD 2.0's `null_odds`


def located(summaries: Array, rows: EncodedRows) -> Array:
    """The same with the best span's place in characters of its context; (windows, exits, …) or (windows, …)."""
    made = np.array(summaries, dtype=np.float32)
    numbers = np.arange(len(made)).reshape(-1, *[1] * (made.ndim - 2))
    starts, ends = (made[..., column].astype(np.int64).clip(0) for column in (BEGIN, END))
    made[..., BEGIN], made[..., END] = spots(rows, np.broadcast_to(numbers, starts.shape), starts, ends)
    return made


def spots(rows: EncodedRows, numbers: Array, starts: Array, ends: Array) -> tuple[Array, Array]:
    """Where spans of tokens of some rows stand in their contexts, in characters."""
    assert rows.begins is not None and rows.ends is not None
    first = rows.begins.starts[numbers]
    return rows.begins.values[first + starts], rows.ends.values[first + ends]


def best_spans(summaries: Array, owner: NDArray[np.int64], no_answer: float | None = None) -> BestSpans:
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
    return BestSpans(np.where(empty, 0, begin), np.where(empty, 0, end), chance, window, null)


def texts_of(found: BestSpans, contexts: Sequence[str]) -> Array:
    """The answers in words, without space around them; an array of texts."""
    spans = zip(contexts, found.begin.tolist(), found.end.tolist(), strict=True)
    made = np.empty(len(found.begin), dtype=object)
    made[:] = [context[begin:end].strip() for context, begin, end in spans]
    return made


def best_no_answer(summaries: Array, owner: Array, contexts: Sequence[str], golds: Array) -> dict[str, float]:
    """The `no_answer` that gives the best F1 on these questions, and that F1."""
    found = best_spans(summaries, np.asarray(owner))
    texts = texts_of(found, contexts)
    said, none = (
        np.array([f1(text, right) for text, right in zip(each, golds, strict=True)])
        for each in (texts, [""] * len(texts))
    )
    order = np.argsort(found.null, kind="stable")
    values = none.sum() + np.cumsum([0.0, *(said - none)[order]])  # the first so many are answered
    most = int(values.argmax())
    odds = found.null[order]
    edges = np.array([odds[0] - 1, *odds, odds[-1] + 1])
    number = float((edges[most] + edges[most + 1]) / 2) if 0 < most < len(odds) else float(edges[most + (most > 0)])
    reached = np.where(found.null > number, none, said).mean()  # of equal odds all or none are answered
    return {"no_answer": number, "f1": 100 * float(reached)}
