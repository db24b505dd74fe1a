"""Input data of the Python API: a file, a list of texts or a table, with or without labels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from offramp.data.rankings import RANKING_INPUTS, are_rankings, is_ranking, join_pairs, join_pairs_with_ids, to_ranking
from offramp.data.reading import (
    Source,
    Text,
    check_utf8,
    extract_text,
    format_names,
    infer_format,
    read_column_names,
    read_records,
    read_texts,
    text_column_indices,
)
from offramp.data.source import check_file, is_readable_twice, missing_pair_message, source_parts, text_columns
from offramp.errors import BadInput, UnknownName

__all__ = ["InputData", "check_exists", "is_table", "resolve_input"]


@dataclass(frozen=True)
class InputData:
    """Texts and optional labels, in a file or in memory."""

    source: Source  # its name for messages and its columns
    texts: list[Text] | None = None  # in memory; None: in the file
    table: Any = None  # in memory: a pandas DataFrame or a Hugging Face dataset
    labels: Sequence[Any] | None = None
    groups: Sequence[Any] | None = None  # of texts in memory
    has_rankings: bool = False  # texts in memory are queries with documents

    @property
    def in_memory(self) -> bool:
        """Whether the rows are in memory instead of in a file."""
        return self.texts is not None or self.table is not None

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.source.name

    def columns(self) -> list[str] | None:
        """Return the column names; None if the rows are plain texts."""
        if self.table is not None:
            return _column_names(self.table)
        return None if self.texts is not None else read_column_names(self.source)

    @property
    def inputs(self) -> tuple[str, ...] | None:
        """The columns of the examples if they determine the answer type, as for rankings; else None."""
        if self.texts is not None:
            return RANKING_INPUTS if self.has_rankings else None
        if self.source.format == "text" and not self.in_memory:
            return None
        return RANKING_INPUTS if are_rankings(self.columns()) else None

    def read(self, inputs: Sequence[str] | None = None) -> Iterator[Text]:
        """Yield the texts; `inputs` are the columns that the model was trained on."""
        source = replace(self.source, inputs=None if inputs is None else tuple(inputs))
        if self.texts is not None:
            return iter(self.texts)
        if self.table is None:
            return read_texts(source)
        texts = _table_texts(self.table, source)
        return join_pairs(texts) if self._has_a_row_per_document(inputs) else texts

    def _has_a_row_per_document(self, inputs: Sequence[str] | None) -> bool:
        """Whether rows are a query and one document each, which belong together if their queries are the same."""
        return (
            inputs is not None and tuple(inputs) == RANKING_INPUTS and RANKING_INPUTS[1] not in (self.columns() or ())
        )

    def read_with_groups(
        self, inputs: Sequence[str] | None, group_column: str | None
    ) -> tuple[list[Text], list[str] | None]:
        """Return the texts and the groups that they belong to; None if they are not grouped."""
        if self.groups is not None:
            texts = list(self.read(inputs))
            if len(texts) != len(self.groups):
                raise BadInput(f"Got {len(texts):,} texts and {len(self.groups):,} groups; the numbers must match.")
            return texts, [_check_group(group, f"`groups`, item {row}") for row, group in enumerate(self.groups, 1)]
        if group_column is None:
            return list(self.read(inputs)), None
        if self.texts is not None:
            raise BadInput("`group_column=` is only for files and tables; pass the groups of a list with `groups=`.")
        if self.source.format == "text" and not self.in_memory:
            raise BadInput(f"{self.source.name} is read as plain text, which has no columns; remove `group_column=`.")
        rows = list(self.read_with_ids(inputs, group_column))
        place = f"{self.source.name}, column {group_column!r}, row"
        groups = [_check_group(group, f"{place} {row}") for row, (group, _) in enumerate(rows, 1)]
        return [text for _, text in rows], groups

    def has_ids(self, column: str) -> bool:
        """Whether all rows have this column; standard input and pipes are not read to find out."""
        if self.in_memory:
            return column in (self.columns() or ())
        if self.source.format == "text" or not is_readable_twice(self.source):
            return False
        names = [read_column_names(part) or [] for part in source_parts(self.source)]
        return all(column in part and len(set(part)) == len(part) for part in names)

    def read_with_ids(
        self, inputs: Sequence[str] | None, id_column: str, required: bool = True
    ) -> Iterator[tuple[Any, Text]]:
        """Yield the id and the text of every row; unless `required`, a missing id is None.

        Rows of a query and a document are joined; the id is that of all rows of the query.
        """
        if self.texts is not None:
            raise BadInput("`id_column=` is only for files and tables, not for a list of texts.")
        rows = self._read_rows_with_ids(inputs, id_column, required)
        return join_pairs_with_ids(rows, self.name, required) if self._has_a_row_per_document(inputs) else rows

    def _read_rows_with_ids(
        self, inputs: Sequence[str] | None, id_column: str, required: bool
    ) -> Iterator[tuple[Any, Text]]:
        source = replace(self.source, inputs=None if inputs is None else tuple(inputs))
        if self.table is not None:
            names = _column_names(self.table) or []
            if id_column not in names:
                raise BadInput(f"The table: {UnknownName('column', id_column, names)}")
            ids = (_plain_id(value, source, row) for row, value in enumerate(_column(self.table, id_column), 1))
            return zip(ids, _table_texts(self.table, source), strict=True)
        if source.format == "text":
            raise BadInput(f"{source.name} is read as plain text, which has no columns; remove `id_column=`.")
        if is_readable_twice(source):
            for part in source_parts(source):
                if (columns := read_column_names(part)) is not None:
                    text_column_indices(part, columns)
                    if id_column not in columns:
                        raise BadInput(f"{part.name}: {UnknownName('column', id_column, columns)}")
        return _ids_and_texts(source, id_column, required)


def _ids_and_texts(source: Source, id_column: str, required: bool) -> Iterator[tuple[Any, Text]]:
    is_empty = True
    for part in source_parts(source):
        for line, row in read_records(part, used=[id_column]):
            is_empty = False
            value = row.get(id_column)
            if value is None and required:
                raise part.error_at(line, f"field {id_column!r} is missing.")
            yield _plain_id(value, part, line), extract_text(part, line, row)
    if is_empty:
        raise BadInput(f"{source.name} contains no texts.")


def _plain_id(value: Any, source: Source, line: int) -> int | str | None:
    """Return an id as an integer or a text, so that every format can hold it unchanged."""
    if isinstance(value, bytes):
        raise source.error_at(line, "the id contains bytes; use text ids.")
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if hasattr(value, "item") and isinstance(value.item(), int):  # a NumPy integer
        return int(value)
    return check_utf8(source, line, str(value))


def _check_group(group: Any, place: str) -> str:
    """Return a group as text; raise if it is missing."""
    if group is None or group != group or str(group) in ("", "nan", "None", "NaT"):
        raise BadInput(f"{place}: the group is missing.")
    return str(group)


def resolve_input(
    texts: Any,
    labels: Sequence[Any] | None = None,
    *,
    text_column: str | None = None,
    pair_column: str | None = None,
    input_format: str | None = None,
    header: bool = True,
) -> InputData:
    """Return the input data for a file name, a list or iterator of texts and pairs, a column, or a table."""
    if isinstance(texts, str | os.PathLike):
        file = os.fspath(texts)
        if labels is not None:
            raise BadInput("`labels=` is only for texts in memory; labels in a file go in a column.")
        return InputData(Source(file, input_format or infer_format(file), text_column, pair_column, header))
    source = Source("texts", "memory", text_column, pair_column)
    label_list = None if labels is None else labels.tolist() if hasattr(labels, "tolist") else list(labels)
    if _column_names(texts) is not None:
        if label_list is not None and len(label_list) != len(texts):
            raise BadInput(f"Got {len(texts):,} rows and {len(label_list):,} labels; the numbers must match.")
        return InputData(source, table=texts, labels=label_list)
    if text_column is not None or pair_column is not None:
        raise BadInput("`text_column=` and `pair_column=` are only for files and tables, not for a list of texts.")
    items = list(_check_iterable(texts))
    text_list = [_check_text(text, number) for number, text in enumerate(items, 1)]
    if label_list is not None and len(label_list) != len(text_list):
        raise BadInput(f"Got {len(text_list):,} texts and {len(label_list):,} labels; the numbers must match.")
    return InputData(source, text_list, labels=label_list, has_rankings=any(map(is_ranking, items)))


def check_exists(data: InputData) -> None:
    """Raise if the data is a file that does not exist."""
    if not data.in_memory:
        check_file(data.source)


def _check_iterable(texts: Any) -> Iterable[Any]:
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping | bytes):
        raise BadInput(f"`texts` must be a file name, or a list or iterator of texts, got {texts!r:.60}.")
    return texts


def _check_text(text: Any, number: int) -> Text:
    if isinstance(text, str):
        return str(text)
    if isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return str(text[0]), str(text[1])
    if is_ranking(text) or (isinstance(text, Mapping) and set(RANKING_INPUTS) & set(text)):
        return to_ranking(text, f"Query {number}")
    raise BadInput(f"Text {number} must be a string or a pair of strings, got {text!r:.60}.")


def _column_names(table: Any) -> list[str] | None:
    """Return the columns of a pandas DataFrame or a Hugging Face dataset; None for anything else."""
    names = getattr(table, "column_names", None)
    if names is None and hasattr(table, "columns") and hasattr(table, "iloc"):
        names = list(table.columns)
    return None if not isinstance(names, list) else [str(name) for name in names]


def is_table(texts: Any) -> bool:
    """Whether `texts` is a table with columns instead of a list of texts."""
    return _column_names(texts) is not None


def _column(table: Any, name: str) -> list[Any]:
    """Return a column by name; the column names of a DataFrame may be numbers."""
    keys = {str(key): key for key in getattr(table, "column_names", None) or table.columns}
    return list(table[keys[name]])


def _table_texts(table: Any, source: Source) -> Iterator[Text]:
    names = _column_names(table) or []
    text, pair = text_columns(source, names)
    if text is None or text not in names:
        raise BadInput(f"The table has the columns {format_names(names)}; use `text_column=` to name the text column.")
    if pair is None and len(source.inputs or ()) == 2:
        raise BadInput(f"The table has the columns {format_names(names)}; {missing_pair_message(source)}")
    first_texts = _column(table, text)
    rows: Iterable[Any] = first_texts if pair is None else zip(first_texts, _column(table, pair), strict=True)
    return (_check_text(row, number) for number, row in enumerate(rows, 1))
