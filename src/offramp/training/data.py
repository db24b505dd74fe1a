"""The data of a training run: task, training rows, held-out calibration rows and dev rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.data.custom_task import infer_task, label_rows
from offramp.data.hashes import hash_texts, normalizer
from offramp.data.input_data import resolve_input
from offramp.data.labels import reorder_rows
from offramp.data.split import READERS, DataLocation, read_custom_table, read_task_rows
from offramp.data.table import Columns, Table, table_from_memory
from offramp.data.task import Rows, Task
from offramp.data.tasks import TASKS
from offramp.errors import BadInput, BadValue
from offramp.files.load_errors import loading
from offramp.training.holdout import TRAIN_NORMALIZED, hold_out, read_hashes
from offramp.training.settings import Settings

__all__ = ["Data", "Tables", "data_location", "read_data", "reorder_labels", "table_in_memory", "warn_about_overlap"]

Tables = tuple[Table, Table]
"""Training and dev data that the caller passes in memory."""

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class Data:
    """A task with its rows. There may be several dev sets: MNLI has two."""

    task: Task
    train: Rows
    calibration: Rows
    dev: dict[str, Rows]
    backbone_hashes: dict[str, NDArray[np.uint64]] = field(default_factory=dict)  # rows of an offramp backbone, by role


def table_in_memory(data: Any, name: str, columns: Columns) -> Table:
    """Return data that the caller passes as `name`, a tuple of texts and labels or a table, as a `Table`."""
    if isinstance(data, tuple) and len(data) == 2:
        rows = resolve_input(data[0], data[1])
        texts = list(rows.read())
        if not texts:
            raise BadInput(f"`{name}` contains no texts.")
        inputs = ("text",) if isinstance(texts[0], str) else ("text", "pair")
        return Table(name, texts, list(rows.labels or ()), list(range(1, len(texts) + 1)), inputs=inputs)
    return table_from_memory(data, name, columns)


def read_data(
    settings: Settings, unlabelled: tuple[Task, Rows, dict[str, Rows]] | None = None, tables: Tables | None = None
) -> Data:
    """Read the splits, warn about skipped rows and hold out the calibration rows.

    `unlabelled` is data without labels, with a teacher's predictions as labels; `tables` is data in memory.
    """
    if tables is not None:
        task = infer_task(tables[0], settings.problem, settings.metric)
        train, dev = label_rows(tables[0], task), {"dev": label_rows(tables[1], task)}
    else:
        task, train, dev = unlabelled or (
            _read_task(settings) if settings.task is not None else _read_custom_data(settings)
        )
    for rows in (train, *dev.values()):
        for note in rows.skipped:
            logger.warning("%s", note)
    if settings.train_rows is not None:
        train = _sample(train, settings.train_rows, settings.seed)
    backbone_hashes = read_hashes(Path(settings.backbone))
    normalize = _normalizer(settings.backbone) if settings.calibration_split else str.strip
    known = [backbone_hashes[role] for role in ("train", TRAIN_NORMALIZED) if role in backbone_hashes]
    seen = np.concatenate(known) if known else None
    train_rows, held_out = hold_out(train, settings.calibration_split, settings.seed, seen, normalize)
    data = Data(task, train.take(train_rows), train.take(held_out), dev, backbone_hashes)
    task.answer_type.check_labels(data.train.labels or ())
    return data


def _normalizer(backbone: str) -> Callable[[str], str]:
    """Return what the backbone's tokenizer does to texts, so that an uncased model has no copies on both sides."""
    from transformers import AutoTokenizer

    with loading(backbone):
        return normalizer(AutoTokenizer.from_pretrained(backbone))


def warn_about_overlap(data: Data) -> None:
    """Warn if dev rows are also training rows."""
    train = hash_texts(data.train.texts)
    for name, rows in data.dev.items():
        if shared := int(np.isin(hash_texts(rows.texts), train).sum()):
            logger.warning(
                "%d of %d rows of %s are also training rows: its scores are optimistic.", shared, len(rows), name
            )


def reorder_labels(data: Data, labels: Sequence[str]) -> Data:
    """Return the data with its classes in the order of a checkpoint's labels, such as RoBERTa's MNLI models have."""
    task = data.task
    if task.labels is None or tuple(labels) == task.labels:
        return data
    train, calibration = (reorder_rows(rows, task, labels) for rows in (data.train, data.calibration))
    dev = {name: reorder_rows(rows, task, labels) for name, rows in data.dev.items()}
    return Data(replace(task, labels=tuple(labels)), train, calibration, dev, data.backbone_hashes)


def data_location(settings: Settings) -> DataLocation:
    """Return where the settings say that the data are."""
    files = {"train": settings.train_file, "dev": settings.dev_file}
    return DataLocation(
        settings.data_dir,
        settings.dataset,
        settings.dataset_config,
        Columns(settings.text_column, settings.pair_column, settings.label_column),
        {split: file for split, file in files.items() if file is not None},
    )


def _read_task(settings: Settings) -> tuple[Task, Rows, dict[str, Rows]]:
    task = TASKS[str(settings.task)]
    for name in ("text_column", "pair_column", "label_column", "metric"):
        if getattr(settings, name) is not None:
            raise BadValue(f"Task {task.name} has fixed columns and metrics; remove `{name}=`.")
    if settings.problem != "auto":
        raise BadValue(f"Task {task.name} has a fixed problem type; remove `problem=`.")
    if "train" not in task.splits and task.answer_type.name not in READERS:
        raise BadValue(f"Task {task.name} has no training rows; train on another task (mnli for ax).")
    location = data_location(settings)
    if task.hub is not None and settings.data_dir is None and settings.train_file is None:  # column names on the Hub
        task = replace(task, inputs=(task.hub.text,) if task.hub.pair is None else (task.hub.text, task.hub.pair))
    dev_splits = ("dev",) if settings.dev_file is not None else task.dev_splits
    dev = {split: read_task_rows(location, task, split) for split in dev_splits}
    return task, read_task_rows(location, task, "train"), dev


def _read_custom_data(settings: Settings) -> tuple[Task, Rows, dict[str, Rows]]:
    if settings.train_file is None and settings.dev_file is None and settings.dataset is None:
        raise BadInput("No training data: use `task=`, `train_file=` with `dev_file=`, or `dataset=`.")
    location = data_location(settings)
    for split in ("train", "dev"):
        if split not in location.files and location.dataset is None:
            raise BadInput(
                f"Missing `{split}_file=`: training on your own files needs both `train_file=` and `dev_file=`."
            )
    train, dev = read_custom_table(location, "train"), read_custom_table(location, "dev")
    task = infer_task(train, settings.problem, settings.metric)
    return task, label_rows(train, task), {"dev": label_rows(dev, task)}


def _sample(rows: Rows, count: int, seed: int) -> Rows:
    if count < 1:
        raise BadValue(f"`train_rows` must be at least 1, got {count}.")
    if count >= len(rows):
        return rows
    return rows.take(np.sort(np.random.default_rng(seed).permutation(len(rows))[:count]))
