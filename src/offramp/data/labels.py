"""A task's classes and a model's: the same names, perhaps in another order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from offramp.answers import MULTI_LABEL, AnswerType
from offramp.data.task import Rows, Task
from offramp.errors import BadInput

__all__ = ["fit", "in_order_of", "reordered"]


def in_order_of(own: Sequence[str], task: Task) -> tuple[str, ...] | None:
    """The task's labels in the order of a model's own classes; None where the model has other classes."""
    known = {label.casefold(): label for label in task.labels or ()}
    if sorted(map(str.casefold, own)) != sorted(known):
        return None
    return tuple(known[name.casefold()] for name in own)


def fit(model: str, own: Sequence[str], answer_type: AnswerType, task: Task) -> tuple[str, ...]:
    """A model's classes as the task names them; a model of other classes is refused.

    Classes that nobody named (LABEL_0, …) take the task's names in the task's order.
    """
    if answer_type is task.answer_type and len(own) == task.num_labels:
        if task.labels is None:
            return tuple(own)
        ordered = in_order_of(own, task)
        if ordered is None and all(re.fullmatch(r"LABEL_\d+", label) for label in own):
            ordered = task.labels
        if ordered is not None:
            return ordered
    wanted = ", ".join(task.labels or ()) or "numbers"
    raise BadInput(f"{model} answers with {', '.join(own)} ({answer_type.title}), the data hold {wanted}.")


def reordered(rows: Rows, task: Task, labels: Sequence[str]) -> Rows:
    """The same rows with classes numbered in another order (RoBERTa's MNLI models have their own)."""
    if task.labels is None or not task.answer_type.has_labels or rows.labels is None or tuple(labels) == task.labels:
        return rows
    if task.answer_type is MULTI_LABEL:
        source = [task.labels.index(label) for label in labels]  # where each class comes from
        return replace(rows, labels=[[row[one] for one in source] for row in rows.labels])
    place = [tuple(labels).index(label) for label in task.labels]  # where each class goes
    return replace(rows, labels=[place[label] for label in rows.labels])
