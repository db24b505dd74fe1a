"""The rows that a command is about: as its options say, else as the model was trained."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.config import AdaptiveConfig
from offramp.errors import BadInput, BadValue
from offramp.reading import Source, format_of, read_texts
from offramp.stepper import Problem
from offramp.tasks import TASKS, Rows, Task
from offramp.tasks.labels import fit, reordered
from offramp.tasks.own import metrics_of, rows_of
from offramp.tasks.split import Where, own_table, task_rows
from offramp.tasks.table import Columns, has_labels

__all__ = ["Given", "Questions", "ask"]

logger = logging.getLogger("offramp")

COLUMNS = ("text_column", "pair_column", "label_column")


@dataclass(frozen=True)
class Given:
    """The data options of a command."""

    task: str | None = None
    data_dir: str | None = None
    dataset: str | None = None
    dataset_config: str | None = None
    file: str | None = None  # takes the split's place
    split: str | None = None
    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None
    metric: str | None = None


@dataclass(frozen=True)
class Questions:
    """Texts, their labels in the model's order where they have some, and the metrics to judge by."""

    name: str
    task: Task
    rows: Rows

    @property
    def labels(self) -> NDArray[Any] | None:
        """As an array: class numbers, values, or 0 and 1."""
        if self.rows.labels is None:
            return None
        kind = np.float64 if self.task.labels is None else np.int64
        return np.asarray(self.rows.labels, dtype=kind)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The main one first; none without labels."""
        return () if self.rows.labels is None else self.task.metrics

    def take(self, places: NDArray[np.int64]) -> Questions:
        """Some of the rows."""
        rows = self.rows
        labels = None if rows.labels is None else [rows.labels[i] for i in places]
        return replace(self, rows=Rows([rows.texts[i] for i in places], labels, rows.skipped))


def ask(model: str, config: AdaptiveConfig, given: Given, split: str, run: Path | None = None) -> Questions:
    """Read the rows; `split` is the one that is taken where none is named.

    `run` is the training's folder, where that is not the model's (checkpoints lie in it).
    """
    named, split = given, given.split or split
    given = _completed(run or Path(model), given, split)
    if given.task is None and named.file is not None and named.split is not None:
        raise BadValue(f"{named.file} has no splits; leave --split out.")
    questions = _of_task(given, split) if given.task is not None else _own(given, config, split)
    for told in questions.rows.skipped:
        logger.warning("%s", told)
    labels = fit(model, config.labels, config.problem, questions.task)
    rows = reordered(questions.rows, questions.task, labels)
    return replace(questions, task=replace(questions.task, labels=labels if questions.task.labels else None), rows=rows)


def _completed(run: Path, given: Given, split: str) -> Given:
    """What is not given, as the model's training had it."""
    trained = _trained(run)
    own = any(getattr(given, name) is not None for name in COLUMNS) or given.dataset is not None
    own = own or (given.file is not None and format_of(given.file) != "tsv")  # the official files are TSV
    other_task = (
        trained.get("task") != given.task if given.task is not None else own and trained.get("task") is not None
    )
    if not trained or other_task:
        return given
    names = ["task", *COLUMNS, "metric"]
    if not (given.data_dir or given.dataset or given.file):
        names += ["data_dir", "dataset", "dataset_config"]
        trained["file"] = trained.get(f"{split}_file")
        names.append("file")
    return replace(given, **{name: trained.get(name) for name in names if getattr(given, name) is None})


def _trained(folder: Path) -> dict[str, Any]:
    from offramp.training.settings import FILE, read_settings

    return read_settings(folder / FILE) if (folder / FILE).is_file() else {}


def _where(given: Given, split: str) -> Where:
    columns = Columns(given.text_column, given.pair_column, given.label_column)
    files = {} if given.file is None else {split: given.file}
    return Where(given.data_dir, given.dataset, given.dataset_config, columns, files)


def _of_task(given: Given, split: str) -> Questions:
    task = TASKS[str(given.task)]
    for name in (*COLUMNS, "metric"):
        if getattr(given, name) is not None:
            raise BadValue(f"Task {task.name} knows its columns and its metric; leave --{name.replace('_', '-')} out.")
    if split == "dev" and given.file is None and len(task.dev_splits) != 1:
        if not task.dev_splits:
            raise BadInput(f"Task {task.name} has no dev rows with labels; evaluate on another task (ax with mnli).")
        split, *others = task.dev_splits
        logger.warning("Task %s: this is %s; --split %s is the other one.", task.name, split, others[0])
    rows = task_rows(_where(given, split), task, split)
    return Questions(f"{task.name}, {given.file or split}", task, rows)


def _own(given: Given, config: AdaptiveConfig, split: str) -> Questions:
    if given.file is None and given.dataset is None:
        raise BadInput("Which rows? Give --task with --data-dir, --file, or --dataset.")
    named = None if config.problem is Problem.REGRESSION else config.labels
    task = Task(
        "own",
        metrics_of(config.problem, given.metric, config.num_labels),
        named,
        multi_label=config.problem is Problem.MULTI_LABEL,
    )
    if given.file is not None and given.label_column is None and not has_labels(Path(given.file)):
        kind = format_of(given.file)
        texts = list(read_texts(Source(given.file, kind, given.text_column, given.pair_column)))
        return Questions(given.file, task, Rows(texts, None))
    name = given.file or f"{given.dataset}, {split}"
    return Questions(name, task, rows_of(own_table(_where(given, split), split), task))
