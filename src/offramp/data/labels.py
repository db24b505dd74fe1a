"""Match a task's classes with a model's: the same names, possibly in a different order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from offramp.answers import MULTI_LABEL, TOKEN, AnswerType
from offramp.data.task import Rows, Task
from offramp.errors import BadInput

__all__ = ["match_labels", "order_like_model", "reorder_rows"]


def order_like_model(model_labels: Sequence[str], task: Task) -> tuple[str, ...] | None:
    """Return the task's labels in the order of the model's classes; None if the model has other classes."""
    known = {label.casefold(): label for label in task.labels or ()}
    if sorted(map(str.casefold, model_labels)) != sorted(known):
        return None
    return tuple(known[name.casefold()] for name in model_labels)


def match_labels(model_name: str, model_labels: Sequence[str], answer_type: AnswerType, task: Task) -> tuple[str, ...]:
    """Return the model's classes under the task's names; raise if the model has other classes.

    Unnamed classes (LABEL_0, …) take the task's names in the task's order.
    """
    if answer_type is task.answer_type and len(model_labels) == task.num_labels:
        if task.labels is None:
            return tuple(model_labels)
        ordered = order_like_model(model_labels, task)
        if ordered is None and all(re.fullmatch(r"LABEL_\d+", label) for label in model_labels):
            ordered = task.labels
        if ordered is not None:
            return ordered
    expected = ", ".join(task.labels or ()) or "numbers"
    raise BadInput(
        f"{model_name} predicts {', '.join(model_labels)} ({answer_type.title}), but the labels of the data are "
        f"{expected}."
    )


def reorder_rows(rows: Rows, task: Task, labels: Sequence[str]) -> Rows:
    """Return the rows with class indices in the order of `labels` (as RoBERTa's MNLI models need)."""
    if task.labels is None or not task.answer_type.has_labels or rows.labels is None or tuple(labels) == task.labels:
        return rows
    if task.answer_type is TOKEN:
        return replace(rows, labels=[entities.with_tags(labels) for entities in rows.labels])
    if task.answer_type is MULTI_LABEL:
        order = [task.labels.index(label) for label in labels]
        return replace(rows, labels=[[row[index] for index in order] for row in rows.labels])
    new_index = [tuple(labels).index(label) for label in task.labels]
    return replace(rows, labels=[new_index[label] for label in rows.labels])
