"""Limits besides the overall risk: on every class, and on the recall and precision of a decision.

| limit     | of the rows that …                     | at most this fraction …                       |
|-----------|----------------------------------------|-----------------------------------------------|
| class     | the full model assigns to the class    | get another prediction                        |
| type      | have entities of a type                | lose one of them                              |
| recall    | the full model flags                   | are not flagged after an early exit           |
| precision | are flagged after an early exit        | are not flagged by the full model             |

A class with too few rows to be tested is joined with the other rare classes. If even these have too few rows together,
they are not covered by the guarantee; settings that change more of these rows than the limit allows are still rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.decisions import Decision
from offramp.evaluation.traces.trace import Trace

__all__ = ["CLASS", "PRECISION", "RECALL", "Limit", "Limits", "OutcomeChange", "count_units", "limits_of"]

CLASS, RECALL, PRECISION = "class", "recall", "precision"

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Limit:
    """A limit on the fraction of changed rows among those that it is about."""

    name: str
    kind: str
    risk: float
    outcomes: tuple[int, ...] = ()  # classes, as columns of `AnswerType.outcomes`
    is_tested: bool = True  # whether there are enough rows for a guarantee


@dataclass(frozen=True)
class OutcomeChange:
    """The predictions of some rows before and after early exits, from which limits count."""

    full: Bools | None  # outcomes of the full model, (rows, outcomes)
    early: Bools | None  # those that are kept
    full_flagged: Bools | None = None  # (rows,)
    early_flagged: Bools | None = None

    def counted(self, limit: Limit) -> Bools:
        """Return the rows that a limit is about."""
        if limit.kind == CLASS:
            assert self.full is not None
            return np.asarray(self.full[:, list(limit.outcomes)].any(1))
        flagged = self.full_flagged if limit.kind == RECALL else self.early_flagged
        assert flagged is not None
        return flagged

    def changed(self, limit: Limit) -> Bools:
        """Return the rows that count against a limit."""
        if limit.kind == CLASS:
            assert self.full is not None and self.early is not None
            columns = list(limit.outcomes)
            return np.asarray((self.full[:, columns] & ~self.early[:, columns]).any(1))
        assert self.full_flagged is not None and self.early_flagged is not None
        if limit.kind == RECALL:
            return self.full_flagged & ~self.early_flagged
        return self.early_flagged & ~self.full_flagged


@dataclass(frozen=True)
class Limits:
    """Limits with, for every row and exit, whether the row counts and whether it changes."""

    limits: tuple[Limit, ...]
    counted: Bools  # (rows, exits, limits); of a text in several windows, if all windows exit there
    changed: Bools  # (rows, exits, limits)

    def __len__(self) -> int:
        return len(self.limits)

    @property
    def risks(self) -> NDArray[np.float64]:
        """The maximum fractions, (limits,)."""
        return np.array([limit.risk for limit in self.limits])

    @property
    def is_tested(self) -> Bools:
        """Which limits have enough rows for a guarantee, (limits,)."""
        return np.array([limit.is_tested for limit in self.limits], dtype=bool)

    def rows_at(self, exit_indices: NDArray[Any]) -> tuple[Bools, Bools]:
        """Return which rows count and change if they exit at these exits, both (rows, limits)."""
        rows = np.arange(len(self.counted))
        return self.counted[rows, exit_indices], self.changed[rows, exit_indices]

    def within(self, exit_indices: NDArray[Any], factor: float) -> bool:
        """Return whether the observed fractions are at most `factor` times the limits."""
        counted, changed = self.rows_at(exit_indices)
        return bool((changed.sum(0) <= factor * self.risks * counted.sum(0)).all())


def limits_of(
    trace: Trace,
    *,
    class_risk: float | None,
    bands: Sequence[float],
    decision: Decision | None,
    recall: float | None,
    precision: float | None,
    needed: int,
) -> Limits:
    """Return the limits of a guarantee on the rows of a trace; `needed` are the rows that test a class."""
    answer_type, labels = trace.answer_type, trace.about["model"]["labels"]
    expected = trace.expected
    full = answer_type.outcomes(expected, labels, bands) if class_risk is not None else None
    limits: list[Limit] = []
    if full is not None and class_risk is not None:
        names = answer_type.outcome_names(labels, bands)
        limits += _class_limits(names, class_risk, full, needed, trace.clusters, answer_type.outcome_nouns)
    if decision is not None and recall is not None:
        limits.append(Limit(f"recall of {decision.name}", RECALL, 1 - recall))
    if decision is not None and precision is not None:
        limits.append(Limit(f"precision of {decision.name}", PRECISION, 1 - precision))
    shape = (len(trace), len(trace.points), len(limits))
    counted, changed = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    full_flagged = None if decision is None else decision.flagged(expected, trace.expected_logits)
    for exit_index in range(len(trace.points) if limits else 0):
        answers = trace.answers_at(exit_index)
        early = None if full is None else answer_type.kept_outcomes(answers, expected, labels, bands)
        early_flagged = None if decision is None else decision.flagged(answers, trace.logits[:, exit_index])
        change = OutcomeChange(full, early, full_flagged, early_flagged)
        for index, limit in enumerate(limits):
            counted[:, exit_index, index] = change.counted(limit)
            changed[:, exit_index, index] = change.changed(limit)
    return Limits(tuple(limits), counted, changed)


def _class_limits(
    names: Sequence[str], risk: float, full: Bools, needed: int, clusters: NDArray[np.int64] | None, nouns: str
) -> list[Limit]:
    """Return a limit per class with enough rows, and one for the others together."""
    counts = np.array([count_units(full[:, index], clusters) for index in range(len(names))])
    limits = [Limit(name, CLASS, risk, (index,)) for index, name in enumerate(names) if counts[index] >= needed]
    rare = [index for index in range(len(names)) if counts[index] < needed]  # also those without rows: the pool must
    pooled = count_units(np.asarray(full[:, rare].any(1)), clusters)  # not depend on which rare classes occur
    if pooled:
        name = names[rare[0]] if len(rare) == 1 else f"{len(rare)} rare {nouns} together"
        limits.append(Limit(name, CLASS, risk, tuple(rare), pooled >= needed))
    return limits


def count_units(rows: Bools, clusters: NDArray[np.int64] | None) -> int:
    """Return the number of independent units among these rows: the rows, or their clusters."""
    return int(rows.sum()) if clusters is None else len(np.unique(clusters[rows]))
