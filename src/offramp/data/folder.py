"""Read a task's split from the official download's folder, or from another file in the same layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offramp.data.reading import Source, Text, read_cells
from offramp.data.task import Layout, Rows, Task
from offramp.errors import BadInput, UnknownName

__all__ = ["parse_label", "read_split", "unknown_label"]

NO_LABEL = ("", "-")  # how the official files mark rows on which the annotators did not agree


def read_split(task: Task, split: str, data_dir: Path | None = None, file: Path | None = None) -> Rows:
    """A split's rows; rows that cannot be used are left out and told of, never guessed.

    `file` takes the split's place and has its columns. The folder may be the suite's or the task's own.
    """
    layout = _layout(task, split)
    if file is None:
        if data_dir is None:
            raise BadInput(f"Task {task.name}: say where its files are, with a data folder or a file for {split}.")
        file = _find(task, layout, data_dir)
    if not file.is_file():
        raise BadInput(f"No file {file}.")
    return _rows(task, layout, file)


def _layout(task: Task, split: str) -> Layout:
    if split in task.splits:
        return task.splits[split]
    if split == "dev" and task.dev_splits:  # MNLI's two halves have one layout
        return task.splits[task.dev_splits[0]]
    raise UnknownName(f"split of {task.name}", split, task.splits)


def _find(task: Task, layout: Layout, data_dir: Path) -> Path:
    if not data_dir.is_dir():
        raise BadInput(f"No folder {data_dir}.")
    own = [path for path in data_dir.iterdir() if path.is_dir() and path.name.lower() == task.folder.lower()]
    for folder in (*own, data_dir):
        if (folder / layout.file).is_file():
            return folder / layout.file
    there = sorted(path.name for path in (own[0] if own else data_dir).iterdir())
    raise BadInput(
        f"Task {task.name}: no {task.folder}/{layout.file} in {data_dir}; there are "
        f"{', '.join(there[:8]) or 'no files'}. "
        "Another file can take its place, `train_file=` for instance."
    )


def _rows(task: Task, layout: Layout, file: Path) -> Rows:
    texts: list[Text] = []
    labels: list[Any] = []  # class numbers, or values
    short: list[int] = []
    unlabelled: list[int] = []
    rows = read_cells(Source(str(file), "tsv"))
    header = next(rows, (0, [""]))[1] if layout.has_header else []
    if layout.columns not in (None, len(header)):
        raise BadInput(
            f"{file} has the columns {', '.join(header)}, but {task.name} has {layout.columns}; is it another suite's?"
        )
    last = max(layout.text, layout.pair or 0, layout.label or 0)
    for line, cells in rows:
        if cells == [""]:
            continue
        if len(cells) <= last or len(cells) < len(header):
            short.append(line)
            continue
        label = None
        if layout.label is not None:
            written = cells[layout.label]
            label = parse_label(written, task.labels)
            if label is None and written.strip() in NO_LABEL:
                unlabelled.append(line)
                continue
            if label is None:
                raise BadInput(f"{file}, line {line}: {unknown_label(written, task.labels)}")
        texts.append(cells[layout.text] if layout.pair is None else (cells[layout.text], cells[layout.pair]))
        if label is not None:
            labels.append(label)
    if not texts:
        raise BadInput(f"{file} has no usable row for task {task.name}.")
    return Rows(texts, labels if layout.label is not None else None, _told(file, short, unlabelled))


def parse_label(written: str, labels: tuple[str, ...] | None) -> int | float | None:
    """A class number or a value; spelling may differ in case, in surrounding space, or as 1 and 1.0."""
    written = written.strip()
    if labels is None:
        return _value(written)
    if written in labels:
        return labels.index(written)
    folded = [label.casefold() for label in labels]
    if written.casefold() in folded:
        return folded.index(written.casefold())
    value = _value(written)
    values = [_value(label) for label in labels]
    return values.index(value) if value is not None and value in values else None


def _value(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def unknown_label(written: object, labels: Sequence[str] | None) -> str:
    """What to say of a label that is not in the set."""
    if labels is None:
        return f"the label is {written!r}, expected a number."
    known = ", ".join(labels[:20]) + (f" … ({len(labels)})" if len(labels) > 20 else "")
    return f"the label is {written!r}, which is none of {known}."


def _told(file: Path, short: list[int], unlabelled: list[int]) -> tuple[str, ...]:
    told = []
    if short:
        told.append(f"{file}: {len(short)} rows with too few columns were skipped, the first in line {short[0]}.")
    if unlabelled:
        told.append(f"{file}: {len(unlabelled)} rows without a label were skipped, the first in line {unlabelled[0]}.")
    return tuple(told)
