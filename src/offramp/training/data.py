"""The rows of a run: the task, what is trained on, what is set aside, what chooses the checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.data.given import given
from offramp.data.hashes import hashes_of
from offramp.data.labels import reordered
from offramp.data.own import discover, rows_of
from offramp.data.split import READERS, Where, own_table, task_rows
from offramp.data.table import Columns, Table, table_of
from offramp.data.task import Rows, Task
from offramp.data.tasks import TASKS
from offramp.errors import BadInput, BadValue
from offramp.training.holdout import hold_out, read_hashes
from offramp.training.settings import Settings

__all__ = ["Data", "Tables", "read_data", "reorder_labels", "table_given", "warn_of_overlap", "where_of"]

Tables = tuple[Table, Table]
"""The training rows and the dev rows of a caller's own."""

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class Data:
    """A task with its rows; MNLI has two dev sets."""

    task: Task
    train: Rows
    calibration: Rows
    dev: dict[str, Rows]
    inherited: dict[str, NDArray[np.uint64]] = field(default_factory=dict)  # an offramp backbone's own rows, by role


def table_given(data: Any, name: str, columns: Columns) -> Table:
    """A caller's own data: texts with their labels, or a table in memory."""
    if isinstance(data, tuple) and len(data) == 2:
        rows = given(data[0], data[1])
        texts = list(rows.read())
        if not texts:
            raise BadInput(f"`{name}` holds no text.")
        inputs = ("text",) if isinstance(texts[0], str) else ("text", "pair")
        return Table(name, texts, list(rows.labels or ()), list(range(1, len(texts) + 1)), inputs=inputs)
    return table_of(data, name, columns)


def read_data(
    settings: Settings, answered: tuple[Task, Rows, dict[str, Rows]] | None = None, tables: Tables | None = None
) -> Data:
    """Read the splits, say what was skipped, set the calibration rows aside.

    `answered` are rows that have no labels, with a teacher's answers instead; `tables` a caller's own, in memory.
    """
    if tables is not None:
        task = discover(tables[0], settings.problem, settings.metric)
        train, dev = rows_of(tables[0], task), {"dev": rows_of(tables[1], task)}
    else:
        task, train, dev = answered or (_task(settings) if settings.task is not None else _own(settings))
    for rows in (train, *dev.values()):
        for note in rows.skipped:
            logger.warning("%s", note)
    if settings.train_rows is not None:
        train = _some(train, settings.train_rows, settings.seed)
    inherited = read_hashes(Path(settings.backbone))
    kept, held = hold_out(train, settings.calibration_split, settings.seed, inherited.get("train"))
    data = Data(task, train.take(kept), train.take(held), dev, inherited)
    task.answer_type.check_labels(data.train.labels or ())
    return data


def warn_of_overlap(data: Data) -> None:
    """Say it where dev rows are training rows: they were learnt by heart."""
    train = hashes_of(data.train.texts)
    for name, rows in data.dev.items():
        if both := int(np.isin(hashes_of(rows.texts), train).sum()):
            logger.warning("%s: %d of %d rows are trained on, too; its scores flatter.", name, both, len(rows))


def reorder_labels(data: Data, labels: Sequence[str]) -> Data:
    """The same rows with classes numbered in a checkpoint's order (RoBERTa's MNLI models have their own)."""
    task = data.task
    if task.labels is None or tuple(labels) == task.labels:
        return data
    train, calibration = (reordered(rows, task, labels) for rows in (data.train, data.calibration))
    dev = {name: reordered(rows, task, labels) for name, rows in data.dev.items()}
    return Data(replace(task, labels=tuple(labels)), train, calibration, dev, data.inherited)


def where_of(settings: Settings) -> Where:
    """The places of the data that the settings name."""
    files = {"train": settings.train_file, "dev": settings.dev_file}
    return Where(
        settings.data_dir,
        settings.dataset,
        settings.dataset_config,
        Columns(settings.text_column, settings.pair_column, settings.label_column),
        {split: file for split, file in files.items() if file is not None},
    )


def _task(settings: Settings) -> tuple[Task, Rows, dict[str, Rows]]:
    task = TASKS[str(settings.task)]
    for name in ("text_column", "pair_column", "label_column", "metric"):
        if getattr(settings, name) is not None:
            raise BadValue(f"Task {task.name} knows its columns and its metric; leave `{name}=` out.")
    if settings.problem != "auto":
        raise BadValue(f"Task {task.name} knows its kind of answer; leave `problem=` out.")
    if "train" not in task.splits and task.answer_type.name not in READERS:
        raise BadValue(f"Task {task.name} has no training rows: train on another one (ax goes with mnli).")
    where = where_of(settings)
    if task.hub is not None and settings.data_dir is None and settings.train_file is None:  # the Hub's own names
        task = replace(task, inputs=(task.hub.text,) if task.hub.pair is None else (task.hub.text, task.hub.pair))
    devs = ("dev",) if settings.dev_file is not None else task.dev_splits
    return task, task_rows(where, task, "train"), {name: task_rows(where, task, name) for name in devs}


def _own(settings: Settings) -> tuple[Task, Rows, dict[str, Rows]]:
    if settings.train_file is None and settings.dev_file is None and settings.dataset is None:
        raise BadInput("Nothing to learn from: give `task=`, `train_file=` with `dev_file=`, or `dataset=`.")
    where = where_of(settings)
    for split in ("train", "dev"):
        if split not in where.files and where.dataset is None:
            raise BadInput(
                f"Own data needs `{split}_file=` too: exits are trained on one file and scored on the other."
            )
    train, dev = own_table(where, "train"), own_table(where, "dev")
    task = discover(train, settings.problem, settings.metric)
    return task, rows_of(train, task), {"dev": rows_of(dev, task)}


def _some(rows: Rows, count: int, seed: int) -> Rows:
    if count < 1:
        raise BadValue(f"`train_rows` is {count}; it is at least 1.")
    if count >= len(rows):
        return rows
    return rows.take(np.sort(np.random.default_rng(seed).permutation(len(rows))[:count]))
