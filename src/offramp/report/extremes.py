"""The rows to look at: who is answered differently, who leaves first, who stays longest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offramp.answers.span_answers import answers_of
from offramp.data.rows import TaskRows
from offramp.evaluation.traces.trace import Replayed, Trace
from offramp.policies import Policy

__all__ = ["extremes"]

SHOWN, LONGEST = 6, 400  # texts of each kind, and how much of each text
DIFFERENT = 30  # texts that are answered differently


def extremes(
    trace: Trace, data: TaskRows, policy: Policy, tolerance: float | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The rows that leave first and surest, those that stay longest and are least sure, and where answers differ."""
    replayed = trace.replay(policy)
    if trace.question is not None:
        return _of_questions(trace, data, replayed)
    logits = trace.logits[np.arange(len(trace)), replayed.exit - 1].astype(np.float64)
    if trace.answer_type.is_regression:  # sure is what changes little from exit to exit
        sure = -np.abs(np.diff(trace.logits[..., 0], axis=1)).max(1) if len(trace.points) > 1 else logits[:, 0] * 0
        scores = logits[:, 0]
    else:
        sure = scores = trace.answer_type.confidence(torch.from_numpy(logits)).numpy()
    order = np.lexsort((-sure, replayed.layer))
    labels = data.task.labels or ()

    def told(row: int) -> dict[str, Any]:
        text = data.rows.texts[row]
        label = None if data.rows.labels is None else trace.answer_type.say(data.rows.labels[row], labels)
        return {
            "text": text[:LONGEST] if isinstance(text, str) else [part[:LONGEST] for part in text],
            "label": label,
            "answer": trace.answer_type.say(replayed.answers[row], labels),
            "score": round(float(scores[row]), 4),
            "exit_layer": int(replayed.layer[row]),
        }

    def differing(row: int) -> dict[str, Any]:
        return told(row) | {"expected": trace.answer_type.say(trace.expected[row], labels)}

    return _both_ends(order, told) | {"different": [differing(row) for row in _different(trace, replayed, tolerance)]}


def _different(trace: Trace, replayed: Replayed, tolerance: float | None) -> list[int]:
    """Some of the rows whose answer is another one, spread over the data; of a regression the furthest off."""
    if trace.answer_type.is_regression:
        far = np.abs(replayed.answers - trace.expected)
        rows = np.flatnonzero(far > (tolerance or 0))
        return [int(row) for row in rows[np.argsort(-far[rows], kind="stable")][:DIFFERENT]]
    rows = np.flatnonzero(trace.answer_type.differ(replayed.answers, trace.expected))
    if not len(rows):
        return []
    return [int(row) for row in rows[np.unique(np.linspace(0, len(rows) - 1, DIFFERENT).round().astype(int))]]


def _both_ends(order: NDArray[np.int64], told: Callable[[int], dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {
        "easiest": [told(int(row)) for row in order[:SHOWN]],
        "hardest": [told(int(row)) for row in order[::-1][:SHOWN]],
    }


def _of_questions(trace: Trace, data: TaskRows, replayed: Replayed) -> dict[str, list[dict[str, Any]]]:
    """Questions with what is around their answers; a question stays as long as the deepest of its windows."""
    owner = np.asarray(trace.question)
    logits = trace.logits[np.arange(trace.rows), replayed.exit - 1]
    found = answers_of(logits, owner, trace.about["model"]["no_answer"])
    layers = np.maximum.reduceat(replayed.layer, np.flatnonzero(np.diff(owner, prepend=-1)))
    golds = data.labels

    def told(row: int) -> dict[str, Any]:
        pair = data.rows.texts[row]
        question, context = pair[0], pair[1]
        middle = int(found.begin[row] + found.end[row]) // 2
        start = max(0, min(middle - LONGEST // 2, len(context) - LONGEST))
        around = context[start : start + LONGEST]
        return {
            "text": [question, f"{'… ' if start else ''}{around}"],
            "label": None if golds is None else trace.answer_type.say((golds[row] or ("",))[0], ()),
            "answer": trace.answer_type.say(replayed.answers[row], ()),
            "score": round(float(found.score[row]), 4),
            "exit_layer": int(layers[row]),
        }

    return _both_ends(np.lexsort((-found.score, layers)), told)
