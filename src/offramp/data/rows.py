"""Load the rows of a command: from its options, or else from the data that the model was trained on."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers import RANKING, SPAN, TOKEN
from offramp.data.custom_task import choose_metrics, label_rows
from offramp.data.input_data import InputData
from offramp.data.judgements import labelled_rankings
from offramp.data.labels import match_labels, reorder_rows
from offramp.data.reading import Source, infer_format, read_column_names
from offramp.data.source import DEFAULT_TEXT_COLUMNS
from offramp.data.split import DataLocation, read_task_rows
from offramp.data.squad import questions_in_memory
from offramp.data.table import Columns, Table, read_hub, read_table, table_from_memory
from offramp.data.tagged import is_tagged, tagged_columns
from offramp.data.task import Rows, Task
from offramp.data.tasks import TASKS
from offramp.data.training_options import training_data_options
from offramp.errors import BadInput, BadValue
from offramp.model.config import AdaptiveConfig

__all__ = ["DataOptions", "TaskRows", "load_rows", "model_task"]

logger = logging.getLogger("offramp")

COLUMNS = ("text_column", "pair_column", "label_column")


@dataclass(frozen=True)
class DataOptions:
    """The data options of a command."""

    task: str | None = None
    data_dir: str | None = None
    dataset: str | None = None
    dataset_config: str | None = None
    file: str | None = None  # read instead of the split
    memory: InputData | None = None  # rows in memory instead of a file
    split: str | None = None
    input_format: str | None = None  # of the file; None: inferred from its extension
    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None  # what rows are grouped by
    no_header: bool = False
    metric: str | None = None

    @property
    def source(self) -> Source:
        """The file to read."""
        format = self.input_format or infer_format(str(self.file))
        return Source(str(self.file), format, self.text_column, self.pair_column, not self.no_header)


@dataclass(frozen=True)
class TaskRows:
    """Texts, optional labels in the order of the model's classes, and the metrics."""

    name: str
    task: Task
    rows: Rows

    @property
    def labels(self) -> NDArray[Any] | None:
        """Labels as an array: class indices, values, or 0 and 1 per label."""
        if self.rows.labels is None:
            return None
        return self.task.answer_type.label_array(self.rows.labels)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, the main one first; empty without labels."""
        return () if self.rows.labels is None else self.task.metrics

    def take(self, indices: NDArray[np.int64]) -> TaskRows:
        """Return the rows at these indices."""
        return replace(self, rows=self.rows.take(indices))


def model_task(config: AdaptiveConfig, metrics: tuple[str, ...], inputs: tuple[str, ...] = ("sentence",)) -> Task:
    """Return the task of a model for the user's own data."""
    labels = config.labels if config.answer_type.has_labels else None
    return Task("own", metrics, labels, explicit_answer_type=config.answer_type, inputs=inputs)


def load_rows(
    model: str, config: AdaptiveConfig, options: DataOptions, split: str, run: Path | None = None
) -> TaskRows:
    """Load the rows; `split` is the default split.

    `run` is the training folder, if it is not the model folder (checkpoints are subfolders of it).
    """
    if options.memory is not None:
        return _load_from_memory(options, options.memory, config)
    if options.file == "-":
        raise BadInput("These rows are read more than once; pass a file instead of standard input.")
    path = None if options.file is None else Path(options.file)
    if path is not None and path.exists() and not path.is_file() and not path.is_dir():
        raise BadInput(f"{options.file} must be a file or a folder, not a pipe or device: it is read repeatedly.")
    requested, split = options, options.split or split
    options = _complete_options(model, run or Path(model), options, split)
    if config.answer_type is SPAN and options.task is None:
        options = replace(options, task="squad" if config.no_answer is None else "squad2")
    if options.task is None and requested.file is not None and requested.split is not None:
        raise BadValue(f"{requested.file} has no splits; remove `split=`.")
    data = _load_task(options, split) if options.task is not None else _load_custom(options, config, split)
    if data.task.no_answer and config.no_answer is None and config.answer_type is SPAN:
        raise BadInput(
            f"{model} was trained on questions that all have answers, but {data.task.name} has unanswerable ones; "
            "evaluate it on `task='squad'`, or train it on squad2."
        )
    for note in data.rows.skipped:
        logger.warning("%s", note)
    labels = match_labels(model, config.labels, config.answer_type, data.task)
    rows = reorder_rows(data.rows, data.task, labels)
    return replace(data, task=replace(data.task, labels=labels if data.task.labels else None), rows=rows)


# -- options of the training run -----------------------------------------------------------------


def _complete_options(model: str, run: Path, options: DataOptions, split: str) -> DataOptions:
    """Fill in missing options from the training run; only columns that the file has are used."""
    trained = training_data_options(run)
    if not trained or (options.task is not None and options.task != trained["task"]):
        return options
    if trained["task"] is not None and _is_custom_data(options, TASKS[trained["task"]], split):
        return options
    columns = read_column_names(options.source) if options.file is not None and trained["task"] is None else None
    names = ["metric", *(["task"] if options.task is None else [])]
    if options.file is None and options.dataset is None:
        names += COLUMNS
    elif columns is not None:
        names += [name for name in COLUMNS if trained[name] in columns]
    if not (options.data_dir or options.dataset or options.file):
        names += ["data_dir", "dataset", "dataset_config", "file"]
        trained = trained | {"file": trained.get(f"{split}_file")}
        _check_training_data_exists(model, trained)
    filled: dict[str, Any] = {name: trained[name] for name in names if getattr(options, name) is None}
    return replace(options, **filled)


def _is_custom_data(options: DataOptions, task: Task, split: str) -> bool:
    """Whether the rows are the user's own although the model was trained on a known task."""
    if options.task is not None or task.answer_type is SPAN:
        return False
    if options.dataset is not None or any(getattr(options, name) is not None for name in COLUMNS):
        return True
    return options.file is not None and not _is_official_file(options.source, task, split)


def _is_official_file(source: Source, task: Task, split: str) -> bool:
    """Whether a TSV file has the columns of the task's official files."""
    layouts = [task.splits[name] for name in (split, *task.dev_splits) if name in task.splits]
    if source.format != "tsv" or not source.has_header or not layouts:
        return False
    layout, header = layouts[0], read_column_names(source) or []
    if layout.columns not in (None, len(header)) or len(header) <= max(
        layout.text, layout.pair or 0, layout.label or 0
    ):
        return False
    text_indices = [header.index(name) for name in DEFAULT_TEXT_COLUMNS if name in header]
    return not text_indices or layout.text in text_indices or layout.pair is not None


def _check_training_data_exists(model: str, trained: dict[str, str | None]) -> None:
    for name in ("data_dir", "file"):
        path = trained.get(name)
        if path is not None and not Path(path).exists():
            raise BadInput(
                f"{model} was trained on {path}, which no longer exists; pass the rows with "
                f"{'`data_dir=`' if name == 'data_dir' else '`texts=`'}."
            )


# -- reading -------------------------------------------------------------------------------------


def _load_task(options: DataOptions, split: str) -> TaskRows:
    task = TASKS[str(options.task)]
    for name in (*COLUMNS, "group_column", "metric", "input_format", "no_header"):
        if getattr(options, name):
            raise BadValue(
                f"Task {task.name} has fixed columns, files and metrics; remove `{name.removeprefix('no_')}=`."
            )
    if split == "dev" and options.file is None and len(task.dev_splits) != 1:
        if not task.dev_splits:
            raise BadInput(f"Task {task.name} has no labelled dev rows; evaluate on another task (for ax: mnli).")
        split, *others = task.dev_splits
        logger.info("Task %s: using %s; `split='%s'` selects the other dev split.", task.name, split, others[0])
    files = {} if options.file is None else {split: options.file}
    location = DataLocation(options.data_dir, options.dataset, options.dataset_config, Columns(), files)
    return TaskRows(f"{task.name}, {options.file or split}", task, read_task_rows(location, task, split))


def _load_from_memory(options: DataOptions, memory: InputData, config: AdaptiveConfig) -> TaskRows:
    """Load rows in memory, with or without labels."""
    for name in ("task", "data_dir", "dataset", "dataset_config", "split"):
        if getattr(options, name) is not None:
            raise BadValue(f"The rows are in memory; remove `{name}=`.")
    task = model_task(config, choose_metrics(config.answer_type, options.metric, config.num_labels))
    rows = _rows_in_memory(options, memory, config, task)
    for note in rows.skipped:
        logger.warning("%s", note)
    return TaskRows(memory.name, task, rows)


def _rows_in_memory(options: DataOptions, memory: InputData, config: AdaptiveConfig, task: Task) -> Rows:
    names = memory.columns()
    if config.answer_type is SPAN:
        if options.group_column is not None or memory.groups is not None:
            raise BadValue("Questions are grouped by their contexts; remove `group_column=` and `groups=`.")
        return questions_in_memory(memory, config.no_answer is not None)
    if config.answer_type is RANKING:
        texts, groups = memory.read_with_groups(config.inputs, options.group_column)
        return Rows(texts, None if memory.labels is None else list(memory.labels), groups=groups)
    if config.answer_type is TOKEN and tagged_columns(names) is not None:
        return label_rows(table_from_memory(memory.table, memory.name, Columns()), task)
    if memory.labels is None and (names is None or (options.label_column is None and "label" not in names)):
        texts, groups = memory.read_with_groups(config.inputs, options.group_column)
        return Rows(texts, None, groups=groups)
    if memory.labels is None:
        columns = _columns(options, config)
        table = table_from_memory(memory.table, memory.name, columns)
    else:
        texts, groups = memory.read_with_groups(config.inputs, options.group_column)
        table = Table(memory.name, texts, list(memory.labels), list(range(1, len(texts) + 1)), groups=groups)
    return label_rows(table, task)


def _inputs(config: AdaptiveConfig) -> tuple[str, ...] | None:
    return None if config.inputs is None else tuple(config.inputs)


def _columns(options: DataOptions, config: AdaptiveConfig) -> Columns:
    return Columns(
        options.text_column, options.pair_column, options.label_column, _inputs(config), options.group_column
    )


def _load_custom(options: DataOptions, config: AdaptiveConfig, split: str) -> TaskRows:
    if options.file is None and options.dataset is None:
        raise BadInput("No data: pass `texts=`, `dataset=`, or `task=` with `data_dir=`.")
    task = model_task(config, choose_metrics(config.answer_type, options.metric, config.num_labels))
    columns = _columns(options, config)
    if options.file is not None and options.source.format == "conll" and config.answer_type is not TOKEN:
        raise BadInput(f"{options.file} has labelled entities, but the model is for {config.answer_type.title}.")
    if config.answer_type is TOKEN and options.file is not None and is_tagged(options.source):
        return TaskRows(options.file, task, label_rows(read_table(options.file, columns, options.input_format), task))
    if config.answer_type is RANKING and options.file is not None:
        source = replace(options.source, inputs=columns.inputs)
        return TaskRows(options.file, task, labelled_rankings(source, options.label_column))
    if options.file is None:
        name = "validation" if split == "dev" else split  # its name on the Hub
        table = read_hub(str(options.dataset), options.dataset_config, name, columns)
        return TaskRows(f"{options.dataset}, {split}", task, label_rows(table, task))
    source = replace(options.source, inputs=columns.inputs)
    names = read_column_names(source) or []
    if options.label_column is None and "label" not in names:
        texts, groups = InputData(source).read_with_groups(columns.inputs, options.group_column)
        return TaskRows(options.file, task, Rows(texts, None, groups=groups))
    table = read_table(options.file, columns, options.input_format, has_header=not options.no_header)
    return TaskRows(options.file, task, label_rows(table, task))
