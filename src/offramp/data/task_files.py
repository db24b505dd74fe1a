"""Read a split of a task from the folder of its official download, or from a file in the same layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offramp.data.reading import Source, Text, read_cells
from offramp.data.task import Layout, Rows, Task
from offramp.errors import BadInput, UnknownName

__all__ = ["parse_label", "read_split", "unknown_label_message"]

NO_LABEL = ("", "-")  # in the official files, rows on which the annotators did not agree


def read_split(task: Task, split: str, data_dir: Path | None = None, file: Path | None = None) -> Rows:
    """Return the rows of a split; unusable rows are skipped and listed in `Rows.skipped`.

    `data_dir` is the folder of the suite or of the task; `file` is a file with the split's columns to read instead.
    """
    layout = _layout(task, split)
    if file is None:
        if data_dir is None:
            raise BadInput(f"Task {task.name} needs its data folder, or a file for the split {split}.")
        file = _find_file(task, layout, data_dir)
    if not file.is_file():
        raise BadInput(f"File not found: {file}.")
    return _read_rows(task, layout, file)


def _layout(task: Task, split: str) -> Layout:
    if split in task.splits:
        return task.splits[split]
    if split == "dev" and task.dev_splits:  # both dev splits of MNLI have the same layout
        return task.splits[task.dev_splits[0]]
    raise UnknownName(f"split of {task.name}", split, task.splits)


def _find_file(task: Task, layout: Layout, data_dir: Path) -> Path:
    if not data_dir.is_dir():
        raise BadInput(f"Folder not found: {data_dir}.")
    task_dirs = [path for path in data_dir.iterdir() if path.is_dir() and path.name.lower() == task.folder.lower()]
    for folder in (*task_dirs, data_dir):
        if (folder / layout.file).is_file():
            return folder / layout.file
    names = sorted(path.name for path in (task_dirs[0] if task_dirs else data_dir).iterdir())
    raise BadInput(
        f"Task {task.name}: no {task.folder}/{layout.file} in {data_dir}, which contains "
        f"{', '.join(names[:8]) or 'no files'}. To use another file, pass `train_file=` or `dev_file=`."
    )


def _read_rows(task: Task, layout: Layout, file: Path) -> Rows:
    texts: list[Text] = []
    labels: list[Any] = []  # class indices, or values
    malformed: list[int] = []
    unlabelled: list[int] = []
    rows = read_cells(Source(str(file), "tsv"))
    header = next(rows, (0, [""]))[1] if layout.has_header else []
    if layout.columns not in (None, len(header)):
        raise BadInput(
            f"{file} has the columns {', '.join(header)}, but {task.name} has {layout.columns} columns; "
            "is the file from another benchmark suite?"
        )
    last_column = max(layout.text, layout.pair or 0, layout.label or 0)
    for line, cells in rows:
        if cells == [""]:
            continue
        if len(cells) <= last_column or len(cells) < len(header):
            malformed.append(line)
            continue
        label = None
        if layout.label is not None:
            cell = cells[layout.label]
            label = parse_label(cell, task.labels)
            if label is None and cell.strip() in NO_LABEL:
                unlabelled.append(line)
                continue
            if label is None:
                raise BadInput(f"{file}, line {line}: {unknown_label_message(cell, task.labels)}")
        texts.append(cells[layout.text] if layout.pair is None else (cells[layout.text], cells[layout.pair]))
        if label is not None:
            labels.append(label)
    if not texts:
        raise BadInput(f"{file} contains no usable rows for task {task.name}.")
    return Rows(texts, labels if layout.label is not None else None, _skip_notes(file, malformed, unlabelled))


def parse_label(label: str, classes: tuple[str, ...] | None) -> int | float | None:
    """Return the class index (or the value, if `classes` is None) of a label; None if it is not valid.

    Case, surrounding whitespace, and 1 against 1.0 are ignored.
    """
    label = label.strip()
    if classes is None:
        return _parse_number(label)
    if label in classes:
        return classes.index(label)
    folded = [name.casefold() for name in classes]
    if label.casefold() in folded:
        return folded.index(label.casefold())
    value = _parse_number(label)
    values = [_parse_number(name) for name in classes]
    return values.index(value) if value is not None and value in values else None


def _parse_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def unknown_label_message(label: object, classes: Sequence[str] | None) -> str:
    """Return the message for a label that is not one of the classes."""
    if classes is None:
        return f"the label is {label!r}, expected a number."
    known = ", ".join(classes[:20]) + (f" … ({len(classes)})" if len(classes) > 20 else "")
    return f"unknown label {label!r}, expected one of {known}."


def _skip_notes(file: Path, malformed: list[int], unlabelled: list[int]) -> tuple[str, ...]:
    notes = []
    if malformed:
        notes.append(f"{file}: skipped {len(malformed)} rows with too few columns, the first in line {malformed[0]}.")
    if unlabelled:
        notes.append(f"{file}: skipped {len(unlabelled)} rows without a label, the first in line {unlabelled[0]}.")
    return tuple(notes)
