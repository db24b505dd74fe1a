"""Example rows for the report: changed predictions, the earliest and the latest exits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from offramp.data.rows import TaskRows
from offramp.evaluation.results import Example
from offramp.evaluation.traces.trace import Trace
from offramp.policies import Policy

__all__ = ["extremes"]

NUM_EXAMPLES, MAX_CHARACTERS = 6, 400
NUM_DIFFERENT = 30  # examples of changed predictions


def extremes(trace: Trace, data: TaskRows, policy: Policy, tolerance: float | None = None) -> dict[str, list[Example]]:
    """Return the rows that exit first and with most confidence, those that exit last, and changed predictions."""
    rows = trace.replayed_rows(policy)
    answers = trace.decode(rows)
    values, scores = answers.values, answers.score
    certainty = trace.answer_type.certainty(np.asarray(trace.logits), rows.exit)
    if trace.group is not None:  # the minimum over the rows of an example
        certainty = np.minimum.reduceat(certainty, np.flatnonzero(np.diff(np.asarray(trace.group), prepend=-1)))
    order = np.lexsort((-certainty, answers.layer))
    labels, golds = data.task.labels or (), data.rows.labels

    def example(row: int, expected: str | None = None) -> Example:
        return Example(
            answers.excerpt(row, data.rows.texts[row], MAX_CHARACTERS),
            None if golds is None else trace.answer_type.format_label(golds[row], labels),
            trace.answer_type.format(values[row], labels),
            round(float(scores[row]), 4),
            int(answers.layer[row]),
            expected,
        )

    different = [
        example(row, trace.answer_type.format(trace.expected[row], labels))
        for row in _different(trace, values, tolerance)
    ]
    return {
        "easiest": [example(int(row)) for row in order[:NUM_EXAMPLES]],
        "hardest": [example(int(row)) for row in order[::-1][:NUM_EXAMPLES]],
        "different": different,
    }


def _different(trace: Trace, values: NDArray[np.generic], tolerance: float | None) -> list[int]:
    """Return rows with changed predictions, spread over the data; for regression those that differ most."""
    if trace.answer_type.needs_tolerance:
        distance = trace.answer_type.distance(values, trace.expected)
        rows = np.flatnonzero(distance > (tolerance or 0))
        return [int(row) for row in rows[np.argsort(-distance[rows], kind="stable")][:NUM_DIFFERENT]]
    rows = np.flatnonzero(trace.answer_type.differ(values, trace.expected))
    if not len(rows):
        return []
    return [int(row) for row in rows[np.unique(np.linspace(0, len(rows) - 1, NUM_DIFFERENT).round().astype(int))]]
