"""The user's own data as a task: labels discovered in the training rows, then the same for every split."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from offramp.answers import ANSWER_TYPES, MULTI_LABEL, REGRESSION, SINGLE_LABEL, SPAN, AnswerType
from offramp.data.folder import parse_label, unknown_label
from offramp.data.metrics import METRICS
from offramp.data.table import Table
from offramp.data.task import Rows, Task
from offramp.data.written import as_lists, is_missing, looks_joined, looks_like_lists, numbers_with_gaps, written
from offramp.errors import BadInput, BadValue

__all__ = ["discover", "metrics_of", "rows_of", "same_names", "understood"]

logger = logging.getLogger("offramp")

MANY = 20  # classes that a small table may have, whatever its rows
SHOWN = 8  # classes whose counts are told


def discover(table: Table, kind: str = "auto", metric: str | None = None) -> Task:
    """A task for a training table: its kind of answer and its labels, in numerical or alphabetical order."""
    answer_type = _problem(table, kind)
    if not answer_type.has_labels:
        return Task("own", metrics_of(answer_type, metric, 1), None, kind=answer_type, inputs=table.inputs)
    is_several = answer_type is MULTI_LABEL
    lists = as_lists(table.labels, table.label_names) if is_several else [[label] for label in table.labels]
    labels = table.label_names or tuple(
        sorted(_spellings(table.name, (one for row in lists for one in row)), key=_order)
    )
    if not labels:
        raise BadInput(f"{table.name} has no label in any row: there is nothing to learn.")
    if len(labels) < 2 and answer_type is SINGLE_LABEL:
        raise BadInput(f"{table.name} has one class only ({labels[0]}): there is nothing to tell apart.")
    if len(labels) > MANY and 2 * len(labels) > len(table.labels):
        raise BadInput(
            f"{table.name} has {len(labels):,} classes in {len(table.labels):,} rows ({labels[0]!r}, …): "
            "is the label in another column? Say which with `label_column=`, or `problem='regression'` for numbers."
        )
    metrics = metrics_of(answer_type, metric, len(labels))
    return Task("own", metrics, labels, kind=answer_type, inputs=table.inputs)


def metrics_of(answer_type: AnswerType, metric: str | None, classes: int) -> tuple[str, ...]:
    """The metrics of own data, the main one first."""
    main = METRICS[metric or answer_type.metric]
    if not main.fits(answer_type, classes):
        fits = [name for name, one in METRICS.items() if one.fits(answer_type, classes)]
        raise BadValue(f"Metric {main.name} does not fit this {answer_type.title} of {classes}; {', '.join(fits)} do.")
    return (main.name, *(name for name in answer_type.metrics if name != main.name))


def rows_of(table: Table, task: Task) -> Rows:
    """A table's rows with labels as numbers; a label outside the set is named and ends the reading."""
    texts, numbers, unlabelled = [], [], []
    several = task.answer_type is MULTI_LABEL
    labels = as_lists(table.labels, table.label_names or task.labels) if several else table.labels
    for row, label in enumerate(labels):
        if not several and is_missing(label, task.labels):
            unlabelled.append(row)
            continue
        number = _number(label, task, table.label_names)
        if number is None:
            raise BadInput(f"{table.at(row)}: {unknown_label(label, task.labels)}")
        texts.append(table.texts[row])
        numbers.append(number)
    if not texts:
        raise BadInput(f"{table.name} has no row with a label.")
    notes = list(table.skipped)
    if unlabelled:
        what = "without a label" if task.labels is not None else "whose label is no number"
        notes.append(f"{len(unlabelled)} rows {what} were skipped, the first at {table.at(unlabelled[0])}.")
    return Rows(texts, numbers, tuple(notes))


def understood(task: Task, rows: Rows) -> str:
    """What was read, in one line: the kind of answer, the classes with their counts, the rows used."""
    empty = sum(not any(text) for text in rows.texts)  # of a pair: both
    used = f"{len(rows):,} rows used" + (f", {empty:,} of them empty" if empty else "")
    used += f" (pairs of {task.inputs[0]} and {task.inputs[1]})" if len(task.inputs) == 2 else ""
    if task.answer_type is SPAN:
        without = sum(not golds for golds in rows.labels or [])
        told = f", {without:,} of them without an answer" if task.no_answer else ""
        return f"{task.answer_type.title}; {len(rows):,} questions used{told}"
    if task.labels is None:
        values = rows.labels or [0.0]
        return f"{task.answer_type.title}, values from {min(values):g} to {max(values):g}; {used}"
    numbers = rows.labels or []
    counts = (
        [sum(row[i] for row in numbers) for i in range(len(task.labels))] if task.answer_type is MULTI_LABEL else None
    )
    single = Counter(numbers) if counts is None else {}
    each = [f"{label} {single.get(i, 0) if counts is None else counts[i]:,}" for i, label in enumerate(task.labels)]
    more = f", … ({len(each)} classes)" if len(each) > SHOWN else ""
    return f"{task.answer_type.title}: {', '.join(each[:SHOWN])}{more}; {used}"


def _problem(table: Table, kind: str) -> AnswerType:
    if kind != "auto":
        return next(answer_type for answer_type in ANSWER_TYPES.values() if answer_type.short == kind)
    if looks_like_lists(table.labels):
        return MULTI_LABEL
    if table.label_names is not None:
        return SINGLE_LABEL
    if numbers_with_gaps(table.labels):
        return REGRESSION
    if mark := looks_joined(table.labels):
        example = next(text for label in table.labels if mark in (text := written(label)))
        raise BadInput(
            f"{table.name}: labels such as {example!r} look like several in one; give `problem='multi-label'` to take "
            "them apart, or `problem='single-label'` to take them as they are."
        )
    return SINGLE_LABEL


def _number(label: Any, task: Task, names: Sequence[str] | None) -> Any:
    """A label as a model has it: a class's number, 0 and 1 per label, a value; None where it is none of the task's."""
    if task.labels is None:
        return parse_label(written(label), None)
    if task.answer_type is MULTI_LABEL:
        places = [_place(one, task, names) for one in label]
        return None if None in places else [int(place in places) for place in range(len(task.labels))]
    return _place(label, task, names)


def _place(label: Any, task: Task, names: Sequence[str] | None) -> int | None:
    """A class's number; a data set's own number counts by its name, which may stand elsewhere in the task's order.

    A benchmark on the Hub may name its classes otherwise; there the numbers are the task's.
    """
    labels = task.labels or ()
    if names is not None and isinstance(label, int) and not isinstance(label, bool):
        if not 0 <= label < len(names):
            return None
        if task.name != "own" and not same_names(names, labels):
            return label if label < len(labels) else None
        label = names[label]
    place = parse_label(written(label), labels)
    return None if place is None else int(place)


def same_names(names: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether two lists of classes hold the same ones, in whatever order and case."""
    return {*map(str.casefold, names)} == {*map(str.casefold, labels)}


def _spellings(name: str, labels: Iterable[Any]) -> list[str]:
    """The labels, each once; of spellings of one (Yes and yes, 1 and 1.0) the most frequent."""
    counts = Counter(text for label in labels if (text := written(label)))
    there = [text for text in counts if not is_missing(text, list(counts))]
    canonical: dict[str, str] = {}
    for label, _ in counts.most_common():
        if label not in there:
            continue
        value = parse_label(label, None)
        first = canonical.setdefault(label.casefold() if value is None else str(value), label)
        if first != label:
            logger.warning("%s: label %r is taken for %r.", name, label, first)
    return list(canonical.values())


def _order(label: str) -> tuple[int, float, str]:
    value = parse_label(label, None)
    return (0, float(value), label) if value is not None else (1, 0.0, label)
