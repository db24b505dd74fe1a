"""The user's own data as a task: labels discovered in the training rows, then the same for every split."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from offramp.errors import BadInput, BadValue
from offramp.problems import MULTI_LABEL, PROBLEMS, REGRESSION, SINGLE_LABEL, Problem
from offramp.tasks.folder import parse_label, unknown_label
from offramp.tasks.metrics import METRICS
from offramp.tasks.table import Table
from offramp.tasks.task import Rows, Task

__all__ = ["discover", "metrics_of", "rows_of"]

logger = logging.getLogger("offramp")


def discover(table: Table, wanted: str = "auto", metric: str | None = None) -> Task:
    """A task for a training table: its kind of answer and its labels, in numerical or alphabetical order."""
    problem = _problem(table, wanted)
    if problem.is_regression:
        return Task("own", metrics_of(problem, metric, 1), None)
    several = problem is MULTI_LABEL
    found = [one for labels in table.labels for one in (_several(labels) if several else [labels])]
    labels = table.label_names or tuple(sorted(_spellings(table.name, found), key=_order))
    if not labels:
        raise BadInput(f"{table.name} has no label in any row: there is nothing to learn.")
    if len(labels) < 2 and problem is SINGLE_LABEL:
        raise BadInput(f"{table.name} has one class only ({labels[0]}): there is nothing to tell apart.")
    return Task("own", metrics_of(problem, metric, len(labels)), labels, multi_label=several)


def metrics_of(problem: Problem, wanted: str | None, classes: int) -> tuple[str, ...]:
    """The metrics of own data, the main one first."""
    main = METRICS[wanted or problem.metric]
    if not main.fits(problem, classes):
        fits = [name for name, metric in METRICS.items() if metric.fits(problem, classes)]
        raise BadValue(f"Metric {main.name} does not fit this {problem.title} of {classes}; {', '.join(fits)} do.")
    return (main.name, *(name for name in problem.metrics if name != main.name))


def rows_of(table: Table, task: Task) -> Rows:
    """A table's rows with labels as numbers; a label outside the set is named and ends the reading."""
    texts, numbers, unlabelled = [], [], []
    for row, label in enumerate(table.labels):
        if not task.multi_label and _written(label) == "":
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
        notes.append(f"{len(unlabelled)} rows without a label were skipped, the first at {table.at(unlabelled[0])}.")
    return Rows(texts, numbers, tuple(notes))


def _problem(table: Table, wanted: str) -> Problem:
    if wanted != "auto":
        return next(problem for problem in PROBLEMS.values() if problem.short == wanted)
    if any(isinstance(label, list | tuple) for label in table.labels):
        return MULTI_LABEL
    if table.label_names is not None:
        return SINGLE_LABEL
    values = [parse_label(written, None) for label in table.labels if (written := _written(label))]
    fractions = any(value is not None and value != int(value) for value in values)
    return REGRESSION if fractions and None not in values else SINGLE_LABEL


def _number(label: Any, task: Task, names: Sequence[str] | None) -> Any:
    """A label as a model has it: a class's number, 0 and 1 per label, a value; None where it is none of the task's."""
    if task.labels is None:
        return parse_label(_written(label), None)
    if task.multi_label:
        places = [_place(one, task, names) for one in _several(label)]
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
    place = parse_label(_written(label), labels)
    return None if place is None else int(place)


def same_names(names: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether two lists of classes hold the same ones, in whatever order and case."""
    return {*map(str.casefold, names)} == {*map(str.casefold, labels)}


def _spellings(name: str, found: Iterable[Any]) -> list[str]:
    """The labels, each once; of spellings of one (Yes and yes, 1 and 1.0) the most frequent."""
    counts = Counter(written for one in found if (written := _written(one)))
    chosen: dict[str, str] = {}
    for label, _ in counts.most_common():
        value = parse_label(label, None)
        first = chosen.setdefault(label.casefold() if value is None else str(value), label)
        if first != label:
            logger.warning("%s: label %r is taken for %r.", name, label, first)
    return list(chosen.values())


def _several(label: Any) -> list[Any]:
    """A list as it is; a string's parts between commas; nothing where it is empty."""
    if isinstance(label, list | tuple):
        return list(label)
    if isinstance(label, str):
        return [part.strip() for part in label.split(",") if part.strip()]
    if label is None:
        return []
    raise BadValue(f"A row's labels are {label!r}; expected a list, or names between commas.")


def _written(label: Any) -> str:
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return "" if label is None else str(label).strip()


def _order(label: str) -> tuple[int, float, str]:
    value = parse_label(label, None)
    return (0, float(value), label) if value is not None else (1, 0.0, label)
