"""The easiest and the hardest rows: who leaves first, who stays longest."""

from __future__ import annotations

from typing import Any

import numpy as np

from offramp.policies import Policy
from offramp.questions import Questions
from offramp.stepper import Problem
from offramp.trace import Trace

__all__ = ["extremes"]

SHOWN, LONGEST = 6, 400  # texts of each kind, and how much of each text


def extremes(trace: Trace, questions: Questions, policy: Policy) -> dict[str, list[dict[str, Any]]]:
    """The rows that leave first and surest, and those that stay longest and are least sure."""
    left = trace.leave(policy)
    logits = trace.logits[np.arange(len(trace)), left.exit - 1].astype(np.float64)
    if trace.problem is Problem.REGRESSION:
        sure = -np.abs(np.diff(trace.logits[..., 0], axis=1)).max(1) if len(trace.points) > 1 else logits[:, 0] * 0
        scores = logits[:, 0]
    elif trace.problem is Problem.MULTI_LABEL:
        sure = scores = (1 / (1 + np.exp(-np.abs(logits)))).min(1)
    else:
        chances = np.exp(logits - logits.max(1, keepdims=True))
        sure = scores = chances.max(1) / chances.sum(1)
    order = np.lexsort((-sure, left.layer))

    def told(row: int) -> dict[str, Any]:
        text = questions.rows.texts[row]
        label = None if questions.rows.labels is None else _named(questions, questions.rows.labels[row])
        return {
            "text": text[:LONGEST] if isinstance(text, str) else [part[:LONGEST] for part in text],
            "label": label,
            "answer": _named(questions, left.answers[row]),
            "score": round(float(scores[row]), 4),
            "exit_layer": int(left.layer[row]),
        }

    return {
        "easiest": [told(int(row)) for row in order[:SHOWN]],
        "hardest": [told(int(row)) for row in order[::-1][:SHOWN]],
    }


def _named(questions: Questions, value: Any) -> str:
    labels = questions.task.labels
    if labels is None:
        return f"{float(value):.3f}"
    if questions.task.multi_label:
        return ", ".join(label for label, yes in zip(labels, value, strict=True) if yes) or "none"
    return labels[int(value)]
