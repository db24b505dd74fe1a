"""Where a task's rows are read: an official folder, the Hub, or a file that takes a split's place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from offramp.answers import SPAN
from offramp.data.folder import read_split
from offramp.data.own import rows_of
from offramp.data.squad import question_rows
from offramp.data.table import Columns, Table, read_hub, read_table
from offramp.data.task import Rows, Task
from offramp.errors import BadInput

__all__ = ["READERS", "Where", "own_table", "task_rows"]

READERS = {SPAN.name: question_rows}  # of answer types whose data are no tables of texts and labels


@dataclass(frozen=True)
class Where:
    """The places that a user named."""

    data_dir: str | None = None
    dataset: str | None = None
    dataset_config: str | None = None
    columns: Columns = field(default_factory=Columns)
    files: Mapping[str, str] = field(default_factory=dict)  # by split


def task_rows(where: Where, task: Task, split: str) -> Rows:
    """A known task's split."""
    if (reader := READERS.get(task.answer_type.name)) is not None:
        return reader(task, split, where.files.get(split), where.data_dir, where.dataset, where.dataset_config)
    if split in where.files:
        return read_split(task, split, None, Path(where.files[split]))
    if where.data_dir is not None:
        return read_split(task, split, Path(where.data_dir))
    hub = task.hub
    path = where.dataset or (hub.path if hub else None)
    if hub is None or path is None:
        raise BadInput(f"Task {task.name} is not on the Hub: give `data_dir=`, the folder of its official download.")
    table = read_hub(
        path, where.dataset_config or hub.config, hub.splits[split], Columns(hub.text, hub.pair, hub.label)
    )
    return rows_of(table, task)


def own_table(where: Where, split: str) -> Table:
    """A split of the user's own data."""
    if split in where.files:
        return read_table(where.files[split], where.columns)
    if where.dataset is not None:
        name = "validation" if split == "dev" else split  # as the Hub calls it
        return read_hub(where.dataset, where.dataset_config, name, where.columns)
    raise BadInput(f"There is no file for the {split} rows of your own data; name one.")
