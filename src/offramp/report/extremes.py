"""The easiest and the hardest rows: who leaves first, who stays longest."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from offramp.policies import Policy
from offramp.tasks.rows import TaskRows
from offramp.traces.trace import Trace

__all__ = ["extremes"]

SHOWN, LONGEST = 6, 400  # texts of each kind, and how much of each text


def extremes(trace: Trace, data: TaskRows, policy: Policy) -> dict[str, list[dict[str, Any]]]:
    """The rows that leave first and surest, and those that stay longest and are least sure."""
    replayed = trace.replay(policy)
    logits = trace.logits[np.arange(len(trace)), replayed.exit - 1].astype(np.float64)
    if trace.problem.is_regression:  # sure is what changes little from exit to exit
        sure = -np.abs(np.diff(trace.logits[..., 0], axis=1)).max(1) if len(trace.points) > 1 else logits[:, 0] * 0
        scores = logits[:, 0]
    else:
        sure = scores = trace.problem.confidence(torch.from_numpy(logits)).numpy()
    order = np.lexsort((-sure, replayed.layer))
    labels = data.task.labels or ()

    def told(row: int) -> dict[str, Any]:
        text = data.rows.texts[row]
        label = None if data.rows.labels is None else trace.problem.say(data.rows.labels[row], labels)
        return {
            "text": text[:LONGEST] if isinstance(text, str) else [part[:LONGEST] for part in text],
            "label": label,
            "answer": trace.problem.say(replayed.answers[row], labels),
            "score": round(float(scores[row]), 4),
            "exit_layer": int(replayed.layer[row]),
        }

    return {
        "easiest": [told(int(row)) for row in order[:SHOWN]],
        "hardest": [told(int(row)) for row in order[::-1][:SHOWN]],
    }
