"""The rows to look at: which are answered differently, which exit first, which stay longest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from offramp.data.rows import TaskRows
from offramp.evaluation.results import Example
from offramp.evaluation.traces.trace import Trace
from offramp.policies import Policy

__all__ = ["extremes"]

SHOWN, LONGEST = 6, 400  # texts of each kind, and how much of each text
DIFFERENT = 30  # texts that are answered differently


def extremes(trace: Trace, data: TaskRows, policy: Policy, tolerance: float | None = None) -> dict[str, list[Example]]:
    """The rows that exit first and surest, those that stay longest and are least sure, and where answers differ."""
    rows = trace.replayed_rows(policy)
    answers = trace.decode(rows)
    values, scores = answers.values, answers.score
    certainty = trace.answer_type.certainty(np.asarray(trace.logits), rows.exit)
    if trace.group is not None:  # as sure as the least certain of an example's rows
        certainty = np.minimum.reduceat(certainty, np.flatnonzero(np.diff(np.asarray(trace.group), prepend=-1)))
    order = np.lexsort((-certainty, answers.layer))
    labels, golds = data.task.labels or (), data.rows.labels

    def shown(row: int, expected: str | None = None) -> Example:
        return Example(
            answers.excerpt(row, data.rows.texts[row], LONGEST),
            None if golds is None else trace.answer_type.format_label(golds[row], labels),
            trace.answer_type.format(values[row], labels),
            round(float(scores[row]), 4),
            int(answers.layer[row]),
            expected,
        )

    different = [
        shown(row, trace.answer_type.format(trace.expected[row], labels))
        for row in _different(trace, values, tolerance)
    ]
    return {
        "easiest": [shown(int(row)) for row in order[:SHOWN]],
        "hardest": [shown(int(row)) for row in order[::-1][:SHOWN]],
        "different": different,
    }


def _different(trace: Trace, values: NDArray[np.generic], tolerance: float | None) -> list[int]:
    """Some of the rows whose answer is another one, spread over the data; with a tolerance the furthest off."""
    if trace.answer_type.needs_tolerance:
        far = trace.answer_type.distance(values, trace.expected)
        rows = np.flatnonzero(far > (tolerance or 0))
        return [int(row) for row in rows[np.argsort(-far[rows], kind="stable")][:DIFFERENT]]
    rows = np.flatnonzero(trace.answer_type.differ(values, trace.expected))
    if not len(rows):
        return []
    return [int(row) for row in rows[np.unique(np.linspace(0, len(rows) - 1, DIFFERENT).round().astype(int))]]
