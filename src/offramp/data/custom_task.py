"""The user's own data as a task: labels are inferred from the training rows and used for every split."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from offramp.answers import ANSWER_TYPES, MULTI_LABEL, REGRESSION, SINGLE_LABEL, SPAN, TOKEN, AnswerType
from offramp.data.entities import OUTSIDE, Entities, split_tag
from offramp.data.label_parsing import (
    find_separator,
    has_label_lists,
    is_missing,
    is_regression,
    label_lists,
    label_text,
)
from offramp.data.metrics import METRICS
from offramp.data.table import Table
from offramp.data.task import Rows, Task
from offramp.data.task_files import parse_label, unknown_label_message
from offramp.errors import BadInput, BadValue, UnknownName

__all__ = ["choose_metrics", "describe_rows", "infer_task", "label_rows", "same_names"]

logger = logging.getLogger("offramp")

MAX_UNCHECKED_CLASSES = 20  # accepted whatever the number of rows
MAX_CLASSES_SHOWN = 8


def infer_task(table: Table, problem: str = "auto", metric: str | None = None) -> Task:
    """Return the task of a training table: its answer type and its labels, in numerical or alphabetical order."""
    answer_type = _infer_answer_type(table, problem)
    if not answer_type.has_labels:
        return Task(
            "own", choose_metrics(answer_type, metric, 1), None, explicit_answer_type=answer_type, inputs=table.inputs
        )
    if answer_type is TOKEN and table.label_names is not None:
        return Task("own", choose_metrics(answer_type, metric, 2), table.label_names, explicit_answer_type=answer_type)
    is_multi_label = answer_type is MULTI_LABEL
    lists = label_lists(table.labels, table.label_names) if is_multi_label else [[label] for label in table.labels]
    labels = table.label_names or tuple(
        sorted(_distinct_labels(table.name, (label for row in lists for label in row)), key=_sort_key)
    )
    if not labels:
        raise BadInput(f"{table.name} has no label in any row; training needs labels.")
    if len(labels) < 2 and answer_type is SINGLE_LABEL:
        raise BadInput(f"{table.name} has only one class ({labels[0]}); training needs at least two.")
    if len(labels) > MAX_UNCHECKED_CLASSES and 2 * len(labels) > len(table.labels):
        raise BadInput(
            f"{table.name} has {len(labels):,} classes in {len(table.labels):,} rows ({labels[0]!r}, …). "
            "Use `label_column=` to name the label column, or `problem='regression'` for numbers."
        )
    metrics = choose_metrics(answer_type, metric, len(labels))
    return Task("own", metrics, labels, explicit_answer_type=answer_type, inputs=table.inputs)


def choose_metrics(answer_type: AnswerType, metric: str | None, classes: int) -> tuple[str, ...]:
    """Return the metrics for the user's own data, the main one first."""
    main = METRICS[metric or answer_type.metric]
    if not main.supports(answer_type, classes):
        supported = [name for name, metric_ in METRICS.items() if metric_.supports(answer_type, classes)]
        raise BadValue(
            f"Metric {main.name} does not support {answer_type.title} with {classes} outputs. "
            f"Available: {', '.join(supported)}."
        )
    return (main.name, *(name for name in answer_type.metrics if name != main.name))


def label_rows(table: Table, task: Task) -> Rows:
    """Return a table's rows with encoded labels; raise at the first label that is not one of the task's."""
    if task.answer_type is TOKEN:
        return _entity_rows(table, task)
    texts, encoded_labels, unlabelled, groups = [], [], [], []
    is_multi_label = task.answer_type is MULTI_LABEL
    labels = label_lists(table.labels, table.label_names or task.labels) if is_multi_label else table.labels
    for row, label in enumerate(labels):
        if not is_multi_label and is_missing(label, task.labels):
            unlabelled.append(row)
            continue
        encoded = _encode_label(label, task, table.label_names)
        if encoded is None:
            raise BadInput(f"{table.location(row)}: {unknown_label_message(label, task.labels)}")
        texts.append(table.texts[row])
        encoded_labels.append(encoded)
        groups += [] if table.groups is None else [table.groups[row]]
    if not texts:
        raise BadInput(f"{table.name} contains no labelled rows.")
    notes = list(table.skipped)
    if unlabelled:
        reason = "without a label" if task.labels is not None else "whose label is not a number"
        first = table.lines[unlabelled[0]]
        notes.append(f"{table.name}: skipped {len(unlabelled)} rows {reason}, the first in line {first}.")
    return Rows(texts, encoded_labels, tuple(notes), groups=groups or None)


def _entity_rows(table: Table, task: Task) -> Rows:
    """Return the rows with the task's tags; raise at the first entity of another type."""
    types = {split_tag(tag)[1] for tag in task.labels or () if tag != OUTSIDE}
    for row, entities in enumerate(table.labels):
        if not isinstance(entities, Entities):
            raise BadInput(
                f"{table.location(row)}: expected entities, got the label {entities!r:.40}; token classification needs "
                "`tokens` with `ner_tags`, `text` with `spans`, or CoNLL columns."
            )
        if unknown := [kind for kind, _, _ in entities if kind not in types]:
            raise BadInput(f"{table.location(row)}: {UnknownName('type of entity', unknown[0], types)}")
    labels = [entities.with_tags(task.labels or ()) for entities in table.labels]
    return Rows(table.texts, labels, table.skipped, groups=table.groups)


def describe_rows(task: Task, rows: Rows) -> str:
    """Return one line with the answer type, the class counts and the number of rows."""
    empty = sum(not any(text) for text in rows.texts)  # a pair is empty if both texts are
    used = f"{len(rows):,} rows used" + (f", {empty:,} of them empty" if empty else "")
    used += f" (pairs of {task.inputs[0]} and {task.inputs[1]})" if len(task.inputs) == 2 else ""
    if task.answer_type is SPAN:
        unanswerable = sum(not golds for golds in rows.labels or [])
        note = f", {unanswerable:,} of them without an answer" if task.no_answer else ""
        return f"{task.answer_type.title}; {len(rows):,} questions used{note}"
    if task.labels is None:
        values = rows.labels or [0.0]
        return f"{task.answer_type.title}, values from {min(values):g} to {max(values):g}; {used}"
    labels = rows.labels or []
    if task.answer_type is TOKEN:
        kinds = Counter(kind for entities in labels for kind, _, _ in entities)
        return f"{task.answer_type.title}: {', '.join(f'{kind} {n:,}' for kind, n in kinds.most_common())}; {used}"
    if task.answer_type is MULTI_LABEL:
        counts = [sum(row[index] for row in labels) for index in range(len(task.labels))]
    else:
        counter = Counter(labels)
        counts = [counter.get(index, 0) for index in range(len(task.labels))]
    classes = [f"{label} {count:,}" for label, count in zip(task.labels, counts, strict=True)]
    more = f", … ({len(classes)} classes)" if len(classes) > MAX_CLASSES_SHOWN else ""
    return f"{task.answer_type.title}: {', '.join(classes[:MAX_CLASSES_SHOWN])}{more}; {used}"


def _infer_answer_type(table: Table, problem: str) -> AnswerType:
    is_tagged = any(isinstance(label, Entities) for label in table.labels)
    if is_tagged and problem not in ("auto", TOKEN.cli_name):
        raise BadInput(f"{table.name} has labelled entities; use `problem='token'`, not {problem!r}.")
    if is_tagged:
        return TOKEN
    if problem == TOKEN.cli_name:
        raise BadInput(
            f"{table.name} has no labelled entities; token classification needs `tokens` with `ner_tags`, `text` with "
            "`spans`, or CoNLL columns."
        )
    if problem != "auto":
        return next(answer_type for answer_type in ANSWER_TYPES.values() if answer_type.cli_name == problem)
    if has_label_lists(table.labels):
        return MULTI_LABEL
    if table.label_names is not None:
        return SINGLE_LABEL
    if is_regression(table.labels):
        return REGRESSION
    if separator := find_separator(table.labels):
        example = next(text for label in table.labels if separator in (text := label_text(label)))
        raise BadInput(
            f"{table.name}: labels such as {example!r} look like several labels; use `problem='multi-label'` to split "
            "them, or `problem='single-label'` to use them as they are."
        )
    return SINGLE_LABEL


def _encode_label(label: Any, task: Task, names: Sequence[str] | None) -> Any:
    """Return a class index, a list of 0 and 1 per label, or a value; None if the label is not one of the task's."""
    if task.labels is None:
        return parse_label(label_text(label), None)
    if task.answer_type is MULTI_LABEL:
        indices = [_class_index(name, task, names) for name in label]
        return None if None in indices else [int(index in indices) for index in range(len(task.labels))]
    return _class_index(label, task, names)


def _class_index(label: Any, task: Task, names: Sequence[str] | None) -> int | None:
    """Return the index of a class in the task; indices of a dataset are mapped by their names.

    If a benchmark on the Hub names its classes differently, its indices are the task's.
    """
    labels = task.labels or ()
    if names is not None and isinstance(label, int) and not isinstance(label, bool):
        if not 0 <= label < len(names):
            return None
        if task.name != "own" and not same_names(names, labels):
            return label if label < len(labels) else None
        label = names[label]
    index = parse_label(label_text(label), labels)
    return None if index is None else int(index)


def same_names(names: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether two lists of classes are the same up to order and case."""
    return {*map(str.casefold, names)} == {*map(str.casefold, labels)}


def _distinct_labels(name: str, labels: Iterable[Any]) -> list[str]:
    """Return the distinct labels; of several spellings (Yes and yes, 1 and 1.0) the most frequent one."""
    counts = Counter(text for label in labels if (text := label_text(label)))
    present = [text for text in counts if not is_missing(text, list(counts))]
    canonical: dict[str, str] = {}
    for label, _ in counts.most_common():
        if label not in present:
            continue
        value = parse_label(label, None)
        spelling = canonical.setdefault(label.casefold() if value is None else str(value), label)
        if spelling != label:
            logger.warning("%s: label %r is treated as %r.", name, label, spelling)
    return list(canonical.values())


def _sort_key(label: str) -> tuple[int, float, str]:
    value = parse_label(label, None)
    return (0, float(value), label) if value is not None else (1, 0.0, label)
