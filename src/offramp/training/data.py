"""The rows of a run: the task, what is trained on, what is set aside, what chooses the checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.errors import BadInput, BadValue
from offramp.tasks import TASKS, Rows, Task
from offramp.tasks.folder import read_split
from offramp.tasks.own import discover, rows_of
from offramp.tasks.table import Columns, Table, read_hub, read_table
from offramp.training.holdout import hold_out
from offramp.training.settings import Settings

__all__ = ["Data", "read_data", "reorder_labels"]

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class Data:
    """A task with its rows; MNLI has two dev sets."""

    task: Task
    train: Rows
    calibration: Rows
    dev: dict[str, Rows]


def read_data(settings: Settings) -> Data:
    """Read the splits, say what was skipped, set the calibration rows aside."""
    task, train, dev = _task(settings) if settings.task is not None else _own(settings)
    for rows in (train, *dev.values()):
        for told in rows.skipped:
            logger.warning("%s", told)
    if settings.train_rows is not None:
        train = _some(train, settings.train_rows, settings.seed)
    kept, held = hold_out(train, settings.calibration_split, settings.seed)
    data = Data(task, _take(train, kept), _take(train, held), dev)
    if task.labels is not None and not task.multi_label and len({*map(int, data.train.labels or ())}) < 2:
        raise BadInput("The training rows are of one class only: there is nothing to tell apart.")
    return data


def reorder_labels(data: Data, labels: Sequence[str]) -> Data:
    """The same rows with classes numbered in a checkpoint's order (RoBERTa's MNLI models have their own)."""
    task = data.task
    if task.labels is None or tuple(labels) == task.labels:
        return data
    old = task.labels
    place = [tuple(labels).index(label) for label in old]  # where each class goes
    source = [old.index(label) for label in labels]  # and where each comes from

    def moved(rows: Rows) -> Rows:
        if task.multi_label:
            return replace(rows, labels=[[row[one] for one in source] for row in rows.labels or ()])
        return replace(rows, labels=[place[label] for label in rows.labels or ()])

    dev = {name: moved(rows) for name, rows in data.dev.items()}
    return Data(replace(task, labels=tuple(labels)), moved(data.train), moved(data.calibration), dev)


def _task(settings: Settings) -> tuple[Task, Rows, dict[str, Rows]]:
    task = TASKS[str(settings.task)]
    for name in ("text_column", "pair_column", "label_column", "metric"):
        if getattr(settings, name) is not None:
            raise BadValue(f"Task {task.name} knows its columns and its metric; leave --{name.replace('_', '-')} out.")
    if settings.problem != "auto":
        raise BadValue(f"Task {task.name} knows its kind of answer; leave --problem out.")
    if "train" not in task.splits:
        raise BadValue(f"Task {task.name} has no training rows: train on another one (ax goes with mnli).")
    folder = Path(settings.data_dir) if settings.data_dir else None
    if folder is None and (settings.train_file is None or settings.dev_file is None):
        return (
            task,
            _hub_split(settings, task, "train"),
            {name: _hub_split(settings, task, name) for name in _devs(settings, task)},
        )
    train = read_split(task, "train", folder, _path(settings.train_file))
    dev = {name: read_split(task, name, folder, _path(settings.dev_file)) for name in _devs(settings, task)}
    return task, train, dev


def _devs(settings: Settings, task: Task) -> tuple[str, ...]:
    return ("dev",) if settings.dev_file is not None else task.dev_splits


def _hub_split(settings: Settings, task: Task, split: str) -> Rows:
    file = settings.train_file if split == "train" else settings.dev_file
    if file is not None:
        return read_split(task, split, None, Path(file))
    hub = task.hub
    path = settings.dataset or (hub.path if hub else None)
    if hub is None or path is None:
        raise BadInput(f"Task {task.name} is not on the Hub: give --data-dir, the folder of its official download.")
    table = read_hub(
        path, settings.dataset_config or hub.config, hub.splits[split], Columns(hub.text, hub.pair, hub.label)
    )
    # the Hub's own order of classes is by name, not by number
    names = table.label_names
    labels = [names[label] if names and isinstance(label, int) and label >= 0 else label for label in table.labels]
    known = replace(table, labels=labels, label_names=None) if _same(names, task.labels) else table
    return rows_of(known, task)


def _same(names: Sequence[str] | None, labels: Sequence[str] | None) -> bool:
    return names is not None and labels is not None and {*map(str.casefold, names)} == {*map(str.casefold, labels)}


def _own(settings: Settings) -> tuple[Task, Rows, dict[str, Rows]]:
    train = _own_split(settings, settings.train_file, "train")
    dev = _own_split(settings, settings.dev_file, "validation")
    task = discover(train, settings.problem, settings.metric)
    return task, rows_of(train, task), {"dev": rows_of(dev, task)}


def _own_split(settings: Settings, file: str | None, split: str) -> Table:
    columns = Columns(settings.text_column, settings.pair_column, settings.label_column)
    if file is not None:
        return read_table(Path(file), columns)
    if settings.dataset is not None:
        return read_hub(settings.dataset, settings.dataset_config, split, columns)
    if settings.train_file is None and settings.dev_file is None:
        raise BadInput("Nothing to learn from: give --task, --train-file with --dev-file, or --dataset.")
    missing = "--train-file" if split == "train" else "--dev-file"
    raise BadInput(f"Own data needs {missing} too: exits are trained on one file and scored on the other.")


def _path(file: str | None) -> Path | None:
    return None if file is None else Path(file)


def _take(rows: Rows, places: NDArray[np.int64]) -> Rows:
    assert rows.labels is not None
    return Rows([rows.texts[i] for i in places], [rows.labels[i] for i in places], rows.skipped)


def _some(rows: Rows, count: int, seed: int) -> Rows:
    if count < 1:
        raise BadValue(f"train-rows is {count}; it is at least 1.")
    if count >= len(rows):
        return rows
    return _take(rows, np.sort(np.random.default_rng(seed).permutation(len(rows))[:count]))
