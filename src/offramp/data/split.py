"""Read a split from the folder of an official download, from the Hub, or from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from offramp.answers import SPAN
from offramp.data.custom_task import label_rows
from offramp.data.squad import question_rows
from offramp.data.table import Columns, Table, read_hub, read_table
from offramp.data.task import Rows, Task
from offramp.data.task_files import read_split
from offramp.errors import BadInput

__all__ = ["READERS", "DataLocation", "read_custom_table", "read_task_rows"]

READERS = {SPAN.name: question_rows}  # for answer types whose data are not tables of texts and labels


@dataclass(frozen=True)
class DataLocation:
    """Where the data is: a folder, a dataset on the Hub, or one file per split."""

    data_dir: str | None = None
    dataset: str | None = None
    dataset_config: str | None = None
    columns: Columns = field(default_factory=Columns)
    files: Mapping[str, str] = field(default_factory=dict)  # by split


def read_task_rows(location: DataLocation, task: Task, split: str) -> Rows:
    """Read a split of a known task."""
    if (reader := READERS.get(task.answer_type.name)) is not None:
        files, dataset = location.files, location.dataset
        return reader(task, split, files.get(split), location.data_dir, dataset, location.dataset_config)
    if split in location.files:
        return read_split(task, split, None, Path(location.files[split]))
    if location.data_dir is not None:
        return read_split(task, split, Path(location.data_dir))
    hub = task.hub
    path = location.dataset or (hub.path if hub else None)
    if hub is None or path is None:
        raise BadInput(
            f"Task {task.name} is not on the Hub; pass the folder of its official download with `data_dir=`."
        )
    table = read_hub(
        path, location.dataset_config or hub.config, hub.splits[split], Columns(hub.text, hub.pair, hub.label)
    )
    return label_rows(table, task)


def read_custom_table(location: DataLocation, split: str) -> Table:
    """Read a split of the user's own data."""
    if split in location.files:
        return read_table(location.files[split], location.columns)
    if location.dataset is not None:
        name = "validation" if split == "dev" else split  # its name on the Hub
        return read_hub(location.dataset, location.dataset_config, name, location.columns)
    raise BadInput(f"No {split} file for your own data; pass `{split}_file=`.")
