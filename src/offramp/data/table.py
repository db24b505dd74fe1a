"""Labelled tables: TSV, CSV, JSON lines and Parquet files, Hugging Face datasets and pandas DataFrames."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offramp.data.parquet import parquet_metadata
from offramp.data.reading import Source, Text, check_utf8, format_names, infer_format, read_records
from offramp.data.source import (
    check_file,
    describe_dead_link,
    is_readable_twice,
    missing_pair_message,
    source_parts,
    text_columns,
)
from offramp.data.tagged import TaggedRows, is_tagged, read_tagged, tagged_columns, tagged_from_rows
from offramp.errors import BadInput, UnknownName
from offramp.extras import require

__all__ = ["Columns", "Table", "load_hub", "read_hub", "read_table", "table_from_memory"]


BOOLEANS = {"1": True, "1.0": True, "true": True, "yes": True, "0": False, "0.0": False, "false": False, "no": False}


@dataclass(frozen=True)
class Columns:
    """The columns of the text, the second text of each pair, the label and the group; `inputs` are the model's own."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    inputs: tuple[str, ...] | None = None
    group: str | None = None  # what rows are grouped by


@dataclass(frozen=True)
class Table:
    """Texts and unparsed labels, with their line or row numbers."""

    name: str
    texts: list[Text]
    labels: list[Any]
    lines: list[int]
    label_names: tuple[str, ...] | None = None  # class names of a Hugging Face dataset
    skipped: tuple[str, ...] = ()  # notes on rows that were left out
    inputs: tuple[str, ...] = ("text",)  # the columns of the texts
    groups: list[Any] | None = None  # the group of each row, if rows are grouped

    def location(self, row: int) -> str:
        """Return the file and line of a row, for messages."""
        return f"{self.name}, line {self.lines[row]}"


def read_table(file: str, columns: Columns, format: str | None = None, has_header: bool = True) -> Table:
    """Read a local file; its format follows from its extension unless it is given."""
    format = format or infer_format(file)
    source = Source(file, format, columns.text, columns.pair, has_header, columns.inputs)
    if not is_readable_twice(source):
        raise BadInput(f"File not found: {file}{describe_dead_link(file)}.")
    check_file(source)
    if is_tagged(source):
        return _tagged_table(file, read_tagged(source))
    if format == "text":
        raise BadInput(f"{file}: expected a file with the extension .tsv, .csv, .jsonl, .parquet or .conll.")
    malformed: list[int] = []
    texts: list[Text] = []
    labels: list[Any] = []
    lines: list[int] = []
    groups: list[Any] | None = None if columns.group is None else []
    chosen: tuple[str, str | None, str] | None = None
    for line, row in read_records(source, malformed):
        chosen = chosen or _choose_columns(source, columns.label, list(row))
        text, pair, label = chosen
        first = _text(source, line, row, text)
        texts.append(first if pair is None else (first, _text(source, line, row, pair)))
        labels.append(_label(source, line, row, label))
        if groups is not None:
            groups.append(_group(source, line, row, str(columns.group)))
        lines.append(line)
    if chosen is None:
        raise BadInput(f"{file} contains no rows.")
    skipped = (
        f"{file}: skipped {len(malformed)} rows with too few or too many columns, "
        f"the first in line {(malformed or [0])[0]}."
    )
    names = _class_names(source, chosen[2]) if format == "parquet" else None
    notes = (skipped,) if malformed else ()
    return Table(file, texts, labels, lines, names, notes, _input_columns(*chosen[:2]), groups)


def _tagged_table(name: str, rows: TaggedRows) -> Table:
    return Table(name, rows.texts, rows.labels, rows.lines, rows.tags, rows.notes)


def _group(source: Source, line: int, row: Mapping[str, Any], column: str) -> str:
    if row.get(column) in (None, ""):
        if column not in row:
            raise source.error_at(line, str(UnknownName("column", column, row)))
        raise source.error_at(line, f"column {column!r} is empty, expected the group of the row.")
    return str(row[column])


def read_hub(path: str, config: str | None, split: str, columns: Columns) -> Table:
    """Read a split of a dataset on the Hub or in a local folder."""
    return _from_dataset(load_hub(path, config, split), f"{path}, split {split}", columns)


def _text(source: Source, line: int, row: Mapping[str, Any], column: str) -> str:
    if column not in row:
        raise source.error_at(line, str(UnknownName("column", column, row)))
    text = row[column]
    if not isinstance(text, str):
        raise source.error_at(line, f"column {column!r} is {text!r:.40}, expected a text.")
    return check_utf8(source, line, text)


def _label(source: Source, line: int, row: Mapping[str, Any], column: str) -> Any:
    """Return a row's label; with one column per class, the names of the columns that are true."""
    if column in row:
        return row[column]
    names = [name.strip() for name in column.split(",")]
    if missing := [name for name in names if name not in row]:
        raise source.error_at(line, str(UnknownName("column", missing[0], row)))
    flags = {name: BOOLEANS.get(str(row[name]).strip().casefold()) for name in names}
    if invalid := [name for name, flag in flags.items() if flag is None]:
        raise source.error_at(line, f"column {invalid[0]!r} is {row[invalid[0]]!r:.40}, expected 0 or 1.")
    return [name for name, flag in flags.items() if flag]


def _input_columns(text: str, pair: str | None) -> tuple[str, ...]:
    return (text,) if pair is None else (text, pair)


def _choose_columns(source: Source, label: str | None, columns: list[str]) -> tuple[str, str | None, str]:
    """Return the columns of the text, of the second text of each pair and of the label."""
    name = source.name
    label = label or ("label" if "label" in columns else None)
    text, pair = text_columns(source, [column for column in columns if column != label])
    if text is None or label is None:
        role = "text" if text is None else "label"
        raise BadInput(
            f"{name} has the columns {format_names(columns)}; use `{role}_column=` to name the {role} column."
        )
    label_columns = [part.strip() for part in label.split(",")] if label not in columns else [label]
    for column in (text, pair, *label_columns):
        if column is not None and column not in columns:
            raise BadInput(f"{name}: {UnknownName('column', column, columns)}")
    if pair is None and len(source.inputs or ()) == 2:
        raise BadInput(f"{name} has the columns {format_names(columns)}; {missing_pair_message(source)}")
    return text, pair, label


def _class_names(source: Source, column: str) -> tuple[str, ...] | None:
    """Return the class names in the metadata of a Hugging Face dataset's Parquet file."""
    metadata = parquet_metadata(source_parts(source)[0]).get(b"huggingface")
    try:
        feature = json.loads(metadata or b"{}").get("info", {}).get("features", {}).get(column, {})
    except (ValueError, AttributeError):
        return None
    feature = feature.get("feature", feature) if isinstance(feature, dict) else {}
    names = feature.get("names") if isinstance(feature, dict) else None
    return tuple(map(str, names)) if isinstance(names, list) and names else None


def load_hub(path: str, config: str | None, split: str) -> Any:
    """Load a split with `datasets`."""
    require("train", "Reading a dataset from the Hub")
    import datasets

    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(path, config, split=split)
    except Exception as err:  # the library raises many exception types
        dataset = f"dataset {path}" + (f" ({config})" if config else "")
        raise BadInput(f"Cannot read {dataset}, split {split}: {' '.join(str(err).split())[:300]}") from err


def table_from_memory(data: Any, name: str, columns: Columns) -> Table:
    """Return a table from a Hugging Face dataset or a pandas DataFrame."""
    if not hasattr(data, "column_names"):
        import datasets

        data = datasets.Dataset.from_pandas(data, preserve_index=False)
    return _from_dataset(data, name, columns)


def _from_dataset(data: Any, name: str, columns: Columns) -> Table:
    if not len(data):
        raise BadInput(f"{name} contains no rows.")
    if (tagged := tagged_columns(data.column_names)) is not None and columns.label is None:
        names = getattr(getattr(data.features[tagged[1]], "feature", None), "names", None)
        return _tagged_table(name, tagged_from_rows(data, name, names))
    source = Source(name, "parquet", columns.text, columns.pair, inputs=columns.inputs)
    text, pair, label = _choose_columns(source, columns.label, data.column_names)
    first_texts, labels = list(data[text]), list(data[label])
    second_texts = None if pair is None else list(data[pair])
    for column, cells in ((text, first_texts), (pair, second_texts or ())):
        bad_row = next((row for row, cell in enumerate(cells, 1) if not isinstance(cell, str)), None)
        if bad_row is not None:
            raise BadInput(f"{name}, row {bad_row}: column {column!r} is not a text.")
    texts: list[Text] = first_texts if second_texts is None else list(zip(first_texts, second_texts, strict=True))
    feature = data.features[label]
    names = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)
    lines = list(range(1, len(texts) + 1))
    groups = None
    if columns.group is not None:
        if columns.group not in data.column_names:
            raise BadInput(f"{name}: {UnknownName('column', columns.group, data.column_names)}")
        rows = enumerate(data[columns.group], 1)
        groups = [_group(source, row, {columns.group: value}, columns.group) for row, value in rows]
    inputs = _input_columns(text, pair)
    return Table(name, texts, labels, lines, tuple(names) if names else None, inputs=inputs, groups=groups)
