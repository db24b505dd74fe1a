"""Combine the outputs for the windows of a question into its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.answer import Answer, Answers
from offramp.answers.overlap import token_f1
from offramp.answers.span_summary import BEST, CHOICE, CONFIDENCE, MASKED_LOGIT, NULL
from offramp.core.batch import EncodedRows

__all__ = [
    "BestSpans",
    "SpanAnswer",
    "SpanAnswers",
    "answer_texts",
    "best_spans",
    "char_positions",
    "to_char_positions",
    "tune_no_answer",
]

Array = NDArray[Any]
SCORE, PROBABILITY, BEGIN, END = range(BEST.start, BEST.stop)
MIN_SCORE = MASKED_LOGIT / 2  # below it, the window contains no possible span


@dataclass(frozen=True, slots=True)
class SpanAnswer(Answer):
    """The answer to a question: `label` is its text in the context, from character `start` to `end`; empty: no answer.

    `score` is its probability in the window that it comes from, `exit_layer` the deepest exit layer of the question's
    windows.
    """

    start: int | None
    end: int | None

    @property
    def text(self) -> str:
        """Text of the answer."""
        return str(self.label)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as a dict with the answer type's `fields`."""
        return {
            "answer": self.text,
            "score": round(self.score, 6),
            "start": self.start,
            "end": self.end,
            "exit_layer": self.exit_layer,
        }


@dataclass(frozen=True)
class SpanAnswers(Answers):
    """Answers in the order of the questions."""

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
        """Texts of the answers."""
        return self.texts

    @property
    def score(self) -> NDArray[np.float64]:
        """Probability of each answer in its window."""
        return self.scores

    def excerpt(self, index: int, example: Any, max_length: int) -> str | list[str]:
        """Return the question and the part of the context around the answer."""
        question, context = example
        middle = int(self.start[index] + self.end[index]) // 2
        start = max(0, min(middle - max_length // 2, len(context) - max_length))
        return [question, f"{'… ' if start else ''}{context[start : start + max_length]}"]


@dataclass(frozen=True)
class BestSpans:
    """The best span of each question: its position, probability and window."""

    begin: NDArray[np.int64]  # in characters; begin = end: no answer
    end: NDArray[np.int64]
    score: NDArray[np.float64]
    window: NDArray[np.int64]  # row of the window
    null: NDArray[np.float64]  # score of "no answer" minus that of the best span: SQuAD 2.0's `null_odds`


def to_char_positions(summaries: Array, rows: EncodedRows) -> Array:
    """Convert the position of the best span from tokens to characters; (windows, exits, …) or (windows, …)."""
    converted = np.array(summaries, dtype=np.float32)
    row_indices = np.arange(len(converted)).reshape(-1, *[1] * (converted.ndim - 2))
    starts, ends = (converted[..., column].astype(np.int64).clip(0) for column in (BEGIN, END))
    row_indices = np.broadcast_to(row_indices, starts.shape)
    converted[..., BEGIN], converted[..., END] = char_positions(rows, row_indices, starts, ends)
    return converted


def char_positions(rows: EncodedRows, row_indices: Array, starts: Array, ends: Array) -> tuple[Array, Array]:
    """Return the character positions of token spans in the contexts of these rows."""
    assert rows.begins is not None and rows.ends is not None
    offsets = rows.begins.starts[row_indices]
    return rows.begins.values[offsets + starts], rows.ends.values[offsets + ends]


def best_spans(summaries: Array, group: NDArray[np.int64], no_answer: float | None = None) -> BestSpans:
    """Return the best span over the windows of each question.

    `summaries` is (windows, columns) with character positions; `group`, ascending, is the question of each window. If
    `no_answer` is set, a question has no answer if "no answer" scores higher by more than that in its least favourable
    window.
    """
    scores = np.asarray(summaries[:, SCORE], dtype=np.float64)
    null_scores = np.asarray(summaries[:, NULL], dtype=np.float64).sum(1)
    order = np.lexsort((-scores, group))  # stable: the first window wins ties
    _, first = np.unique(group[order], return_index=True)
    window = order[first]
    null = np.minimum.reduceat(null_scores, np.flatnonzero(np.diff(group, prepend=-1))) - scores[window]
    best = summaries[window]
    begin, end = (np.asarray(best[:, column], dtype=np.int64) for column in (BEGIN, END))
    probability = np.asarray(best[:, PROBABILITY], dtype=np.float64)
    is_empty = scores[window] <= MIN_SCORE
    if no_answer is not None:
        is_empty |= null > no_answer
        is_null_choice = (best[:, CHOICE] == 0).all(-1)  # otherwise a span is slightly more probable in the window
        null_probability = np.where(is_null_choice, best[:, CONFIDENCE], 1 - probability)
        probability = np.where(is_empty, null_probability, probability)
    return BestSpans(np.where(is_empty, 0, begin), np.where(is_empty, 0, end), probability, window, null)


def answer_texts(spans: BestSpans, contexts: Sequence[str]) -> Array:
    """Return the texts of spans without surrounding whitespace, as an object array."""
    positions = zip(contexts, spans.begin.tolist(), spans.end.tolist(), strict=True)
    texts = np.empty(len(spans.begin), dtype=object)
    texts[:] = [context[begin:end].strip() for context, begin, end in positions]
    return texts


def tune_no_answer(summaries: Array, group: Array, contexts: Sequence[str], golds: Array) -> dict[str, float]:
    """Return the `no_answer` with the best F1 on these questions, and that F1."""
    spans = best_spans(summaries, np.asarray(group))
    texts = answer_texts(spans, contexts)
    answered_f1, empty_f1 = (
        np.array([token_f1(text, gold_texts) for text, gold_texts in zip(answers, golds, strict=True)])
        for answers in (texts, [""] * len(texts))
    )
    order = np.argsort(spans.null, kind="stable")
    totals = empty_f1.sum() + np.cumsum([0.0, *(answered_f1 - empty_f1)[order]])  # if the first n are answered
    best = int(totals.argmax())
    odds = spans.null[order]
    edges = np.array([odds[0] - 1, *odds, odds[-1] + 1])
    threshold = float((edges[best] + edges[best + 1]) / 2) if 0 < best < len(odds) else float(edges[best + (best > 0)])
    best_f1 = np.where(spans.null > threshold, empty_f1, answered_f1).mean()  # equal odds are treated alike
    return {"no_answer": threshold, "f1": 100 * float(best_f1)}
