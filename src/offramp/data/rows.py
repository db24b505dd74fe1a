"""The rows that a command is about: as its options say, else as the model was trained."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers import SPAN
from offramp.data.given import Given
from offramp.data.labels import fit, reordered
from offramp.data.own import metrics_of, rows_of
from offramp.data.reading import Source, columns_of, format_of, read_texts
from offramp.data.source import USUAL_TEXT
from offramp.data.split import Where, task_rows
from offramp.data.squad import questions_in_memory
from offramp.data.table import Columns, Table, read_hub, read_table, table_of
from offramp.data.task import Rows, Task
from offramp.data.tasks import TASKS
from offramp.data.trained import data_of_training
from offramp.errors import BadInput, BadValue
from offramp.model.config import AdaptiveConfig

__all__ = ["DataOptions", "TaskRows", "rows_for", "task_of_model"]

logger = logging.getLogger("offramp")

COLUMNS = ("text_column", "pair_column", "label_column")


@dataclass(frozen=True)
class DataOptions:
    """The data options of a command."""

    task: str | None = None
    data_dir: str | None = None
    dataset: str | None = None
    dataset_config: str | None = None
    file: str | None = None  # takes the split's place
    memory: Given | None = None  # rows in memory, which do as well
    split: str | None = None
    input_format: str | None = None  # of the file; None: by its ending
    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None
    no_header: bool = False
    metric: str | None = None

    @property
    def source(self) -> Source:
        """The file as a reader takes it."""
        kind = self.input_format or format_of(str(self.file))
        return Source(str(self.file), kind, self.text_column, self.pair_column, not self.no_header)


@dataclass(frozen=True)
class TaskRows:
    """Texts, their labels in the model's order where they have some, and the metrics to judge by."""

    name: str
    task: Task
    rows: Rows

    @property
    def labels(self) -> NDArray[Any] | None:
        """As an array: class numbers, values, or 0 and 1."""
        if self.rows.labels is None:
            return None
        return self.task.answer_type.label_array(self.rows.labels)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The main one first; none without labels."""
        return () if self.rows.labels is None else self.task.metrics

    def take(self, places: NDArray[np.int64]) -> TaskRows:
        """Some of the rows."""
        return replace(self, rows=self.rows.take(places))


def task_of_model(config: AdaptiveConfig, metrics: tuple[str, ...], inputs: tuple[str, ...] = ("sentence",)) -> Task:
    """Rows of your own, as a model answers them."""
    labels = config.labels if config.answer_type.has_labels else None
    return Task("own", metrics, labels, kind=config.answer_type, inputs=inputs)


def rows_for(model: str, config: AdaptiveConfig, given: DataOptions, split: str, run: Path | None = None) -> TaskRows:
    """Read the rows; `split` is the one that is taken where none is named.

    `run` is the training's folder, where that is not the model's (checkpoints lie in it).
    """
    if given.memory is not None:
        return _in_memory(given, given.memory, config)
    if given.file == "-":
        raise BadInput("These rows are read more than once; write them into a file instead of standard input.")
    if given.file is not None and Path(given.file).exists() and not Path(given.file).is_file():
        raise BadInput(f"{given.file} is a folder, a pipe or a device; these rows are read more than once from a file.")
    named, split = given, given.split or split
    given = _completed(model, run or Path(model), given, split)
    if config.answer_type is SPAN and given.task is None:
        given = replace(given, task="squad" if config.no_answer is None else "squad2")
    if given.task is None and named.file is not None and named.split is not None:
        raise BadValue(f"{named.file} has no splits; leave `split=` out.")
    data = _of_task(given, split) if given.task is not None else _own(given, config, split)
    if data.task.no_answer and config.no_answer is None and config.answer_type is SPAN:
        raise BadInput(
            f"{model} was trained on questions that all have answers, and {data.task.name} has some without; "
            "evaluate it on `task='squad'`, or train it on squad2."
        )
    for note in data.rows.skipped:
        logger.warning("%s", note)
    labels = fit(model, config.labels, config.answer_type, data.task)
    rows = reordered(data.rows, data.task, labels)
    return replace(data, task=replace(data.task, labels=labels if data.task.labels else None), rows=rows)


# -- what the training had -----------------------------------------------------------------------


def _completed(model: str, run: Path, given: DataOptions, split: str) -> DataOptions:
    """What is not given, as the model's training had it; of its columns those that the file has."""
    trained = data_of_training(run)
    if not trained or (given.task is not None and given.task != trained["task"]):
        return given
    if trained["task"] is not None and _is_own(given, TASKS[trained["task"]], split):
        return given
    there = columns_of(given.source) if given.file is not None and trained["task"] is None else None
    names = ["metric", *(["task"] if given.task is None else [])]
    if given.file is None and given.dataset is None:
        names += COLUMNS
    elif there is not None:
        names += [name for name in COLUMNS if trained[name] in there]
    if not (given.data_dir or given.dataset or given.file):
        names += ["data_dir", "dataset", "dataset_config", "file"]
        trained = trained | {"file": trained.get(f"{split}_file")}
        _check_there(model, trained)
    filled: dict[str, Any] = {name: trained[name] for name in names if getattr(given, name) is None}
    return replace(given, **filled)


def _is_own(given: DataOptions, task: Task, split: str) -> bool:
    """Whether rows are the user's own, though the model was trained on a known task."""
    if given.task is not None or task.answer_type is SPAN:
        return False
    if given.dataset is not None or any(getattr(given, name) is not None for name in COLUMNS):
        return True
    return given.file is not None and not _official(given.source, task, split)


def _official(source: Source, task: Task, split: str) -> bool:
    """Whether a file has the columns of the task's own files, which are TSV."""
    layouts = [task.splits[name] for name in (split, *task.dev_splits) if name in task.splits]
    if source.format != "tsv" or not source.has_header or not layouts:
        return False
    layout, header = layouts[0], columns_of(source) or []
    if layout.columns not in (None, len(header)) or len(header) <= max(
        layout.text, layout.pair or 0, layout.label or 0
    ):
        return False
    usual = [header.index(name) for name in USUAL_TEXT if name in header]
    return not usual or layout.text in usual or layout.pair is not None


def _check_there(model: str, trained: dict[str, str | None]) -> None:
    for name in ("data_dir", "file"):
        place = trained.get(name)
        if place is not None and not Path(place).exists():
            raise BadInput(
                f"{model} was trained on {place}, which is not there any more; say where the rows are with "
                f"{'`data_dir=`' if name == 'data_dir' else '`texts=`'}."
            )


# -- reading -------------------------------------------------------------------------------------


def _of_task(given: DataOptions, split: str) -> TaskRows:
    task = TASKS[str(given.task)]
    for name in (*COLUMNS, "metric", "input_format", "no_header"):
        if getattr(given, name):
            raise BadValue(
                f"Task {task.name} knows its columns, its files and its metric; "
                f"leave `{name.removeprefix('no_')}=` out."
            )
    if split == "dev" and given.file is None and len(task.dev_splits) != 1:
        if not task.dev_splits:
            raise BadInput(f"Task {task.name} has no dev rows with labels; evaluate on another task (ax with mnli).")
        split, *others = task.dev_splits
        logger.warning("Task %s: this is %s; `split='%s'` is the other one.", task.name, split, others[0])
    files = {} if given.file is None else {split: given.file}
    where = Where(given.data_dir, given.dataset, given.dataset_config, Columns(), files)
    return TaskRows(f"{task.name}, {given.file or split}", task, task_rows(where, task, split))


def _in_memory(given: DataOptions, memory: Given, config: AdaptiveConfig) -> TaskRows:
    """Texts that the caller holds, with their labels where there are some."""
    for name in ("task", "data_dir", "dataset", "dataset_config", "split"):
        if getattr(given, name) is not None:
            raise BadValue(f"The rows are given in memory; leave `{name}=` out.")
    task = task_of_model(config, metrics_of(config.answer_type, given.metric, config.num_labels))
    rows = _rows_in_memory(given, memory, config, task)
    for note in rows.skipped:
        logger.warning("%s", note)
    return TaskRows(memory.name, task, rows)


def _rows_in_memory(given: DataOptions, memory: Given, config: AdaptiveConfig, task: Task) -> Rows:
    there = memory.columns()
    if config.answer_type is SPAN:
        return questions_in_memory(memory, config.no_answer is not None)
    if memory.labels is None and (there is None or (given.label_column is None and "label" not in there)):
        return Rows(list(memory.read(config.inputs)), None)
    if memory.labels is None:
        columns = Columns(given.text_column, given.pair_column, given.label_column, _inputs(config))
        table = table_of(memory.table, memory.name, columns)
    else:
        texts = list(memory.read(config.inputs))
        table = Table(memory.name, texts, list(memory.labels), list(range(1, len(texts) + 1)))
    return rows_of(table, task)


def _inputs(config: AdaptiveConfig) -> tuple[str, ...] | None:
    return None if config.inputs is None else tuple(config.inputs)


def _own(given: DataOptions, config: AdaptiveConfig, split: str) -> TaskRows:
    if given.file is None and given.dataset is None:
        raise BadInput("Which rows? Give `task=` with `data_dir=`, `texts=`, or `dataset=`.")
    task = task_of_model(config, metrics_of(config.answer_type, given.metric, config.num_labels))
    inputs = _inputs(config)
    columns = Columns(given.text_column, given.pair_column, given.label_column, inputs)
    if given.file is None:
        name = "validation" if split == "dev" else split  # as the Hub calls it
        table = read_hub(str(given.dataset), given.dataset_config, name, columns)
        return TaskRows(f"{given.dataset}, {split}", task, rows_of(table, task))
    source = replace(given.source, inputs=inputs)
    there = columns_of(source) or []
    if given.label_column is None and "label" not in there:
        return TaskRows(given.file, task, Rows(list(read_texts(source)), None))
    table = read_table(given.file, columns, given.input_format, has_header=not given.no_header)
    return TaskRows(given.file, task, rows_of(table, task))
