"""Read texts, pairs and labelled rows from plain text, TSV, CSV, JSON lines and Parquet files, row by row."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from offramp.data.json_rows import json_rows
from offramp.data.parquet import parquet_file, parquet_rows
from offramp.data.rankings import RANKING_INPUTS, join_pairs, to_ranking
from offramp.data.source import (
    FORMATS,
    MAX_LINE_BYTES,
    Source,
    check_file,
    infer_format,
    missing_pair_message,
    numbered_lines,
    open_source,
    source_parts,
    text_columns,
)
from offramp.errors import BadInput, UnknownName

__all__ = [
    "FORMATS",
    "Source",
    "Text",
    "Words",
    "check_file",
    "check_unique",
    "check_utf8",
    "extract_text",
    "infer_format",
    "is_table_of_pairs",
    "read_cells",
    "read_column_names",
    "read_lines",
    "read_records",
    "read_texts",
    "text_column_indices",
]

MAX_COLUMNS_SHOWN = 20  # in a message
JSON_PREVIEW_ROWS = 100  # JSON lines that are read to find the columns

Text = str | tuple[str, ...]  # a text, a pair, or a query with its documents


class Words(tuple[str, ...]):
    """A text that is given as a list of words; two words are not a pair of texts."""

    __slots__ = ()


def read_texts(source: Source) -> Iterator[Text]:
    """Yield the texts of a source in order; raise at the first invalid row."""
    if source.format not in FORMATS:
        raise UnknownName("format", source.format, FORMATS)
    if source.format == "text" and (source.text_column or source.pair_column):
        raise BadInput(
            f"{source.name} is read as plain text, which has no columns; use `input_format='tsv'`, csv or jsonl."
        )
    check_file(source)
    if source.format == "text" and len(source.inputs or ()) == 2:
        raise BadInput(f"{source.name} is read as plain text; {missing_pair_message(source)}")
    return _iter_texts(source)


def read_column_names(source: Source) -> list[str] | None:
    """Return the column names of a file (of its first rows for JSON lines); None if its rows are plain texts."""
    check_file(source)
    source = source_parts(source)[0]
    if source.format in ("text", "conll"):
        return None
    if source.format == "parquet":
        return [str(name) for name in parquet_file(source).schema_arrow.names]
    if source.format == "jsonl":
        with open_source(source) as file:
            preview = [row for _, row in itertools.islice(_json_rows(source, file), JSON_PREVIEW_ROWS)]
        if any(not isinstance(row, Mapping) for row in preview):
            return None
        return list(dict.fromkeys(name for row in preview for name in row))
    header = next(read_cells(source), (0, [""]))[1]
    return header if source.has_header else [str(column) for column in range(1, len(header) + 1)]


def read_records(
    source: Source, malformed: list[int] | None = None, used: Sequence[str] | None = None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield rows as dicts by column, with the line that each starts on; blank lines are skipped.

    A row with the wrong number of columns raises, or is skipped and its line added to `malformed` if that is a list.
    Two columns of one name raise, unless `used` (columns that are read beside the texts) shows that neither is read.
    """
    check_file(source)
    for part in source_parts(source):
        yield from _part_records(part, malformed, used)


def _part_records(
    source: Source, malformed: list[int] | None, used: Sequence[str] | None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        if source.format == "parquet":
            yield from parquet_rows(source)
        elif source.format == "jsonl":
            with open_source(source) as file:
                for line, row in _json_rows(source, file):
                    if not isinstance(row, Mapping):
                        raise source.error_at(line, f"expected an object with one field per column, got {row!r:.40}.")
                    yield line, row
        else:
            yield from _cell_records(source, malformed, used)
    except OSError as err:
        raise BadInput(f"Cannot read {source.name}: {err.strerror or err}.") from err


def _cell_records(
    source: Source, malformed: list[int] | None, used: Sequence[str] | None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = read_cells(source)
    first = next(rows, None)
    if first is None:
        return
    header = first[1] if source.has_header else [str(column) for column in range(1, len(first[1]) + 1)]
    if not source.has_header:
        rows = itertools.chain([first], rows)
    check_unique(source, header, used)
    yield from _rows_by_column(source, header, rows, malformed)


def check_unique(source: Source, header: Sequence[str], used: Sequence[str] | None) -> None:
    """Raise if two columns have the same name and are read: the columns of the texts and `used` (None: all)."""
    names = header if used is None else [*text_columns(source, header), *used]
    duplicate = next((name for name, count in Counter(header).items() if count > 1 and name in names), None)
    if duplicate is not None:
        raise BadInput(f"{source.name} has two columns named {duplicate!r}; rename one of them.")


def _rows_by_column(
    source: Source, header: Sequence[str], rows: Iterable[tuple[int, list[str]]], malformed: list[int] | None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, cells in rows:
        if cells == [""] and len(header) > 1:
            continue
        if len(cells) != len(header):
            if malformed is None:
                raise _column_count_error(source, line, cells, header)
            malformed.append(line)
            continue
        yield line, dict(zip(header, cells, strict=True))


def read_cells(source: Source) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of a TSV or CSV file, including its header, with the line that each row starts on."""
    with open_source(source) as file:
        yield from _cells(source, file)


def _cells(source: Source, file: BinaryIO, lines_before: int = 0) -> Iterator[tuple[int, list[str]]]:
    return _csv_rows(source, file, lines_before) if source.format == "csv" else _tsv_rows(source, file, lines_before)


def read_lines(
    source: Source, file: BinaryIO, columns: Sequence[str] | None, lines_before: int
) -> Iterator[tuple[int, Any]]:
    """Yield the remaining rows of a file with their line numbers, as dicts by column or as plain texts.

    Columns that are read must have different names (`check_unique`).
    """
    if source.format == "text":
        yield from ((line, _strip_newline(text)) for line, text in numbered_lines(source, file, lines_before))
    elif source.format == "jsonl":
        yield from _json_rows(source, file, lines_before)
    else:
        yield from _rows_by_column(source, columns or (), _cells(source, file, lines_before), None)


def _iter_texts(source: Source) -> Iterator[Text]:
    readers = {
        "text": _plain_texts,
        "conll": _conll_texts,
        "tsv": _table_texts,
        "csv": _table_texts,
        "jsonl": _json_texts,
        "parquet": _parquet_texts,
    }
    reader = readers[source.format]
    is_empty = True
    for part in source_parts(source):
        try:
            with open_source(part) as file:
                texts = reader(part, file)
                for text in join_pairs(texts) if is_table_of_pairs(part) else texts:
                    is_empty = False
                    yield text
        except OSError as err:
            raise BadInput(f"Cannot read {part.name}: {err.strerror or err}.") from err
    if is_empty:
        raise BadInput(f"{source.name} contains no texts.")


def is_table_of_pairs(source: Source) -> bool:
    """Whether a source is a table whose rows are a query and a document, to be joined into rankings."""
    return source.inputs == RANKING_INPUTS and source.format in ("tsv", "csv")


def _strip_newline(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _plain_texts(source: Source, file: BinaryIO) -> Iterator[Text]:
    for _, line in numbered_lines(source, file):
        yield _strip_newline(line)


def _conll_texts(source: Source, file: BinaryIO) -> Iterator[Text]:
    words: list[str] = []
    for number, line in itertools.chain(numbered_lines(source, file), [(0, "")]):
        cells = _strip_newline(line).split("\t" if "\t" in line else None)
        if line.strip() and not cells[0].strip():
            raise source.error_at(number, "the word is empty; remove the line.")
        if line.strip() and cells[0] != "-DOCSTART-":
            words.append(cells[0])
        elif words:
            yield Words(words)
            words = []


def _table_texts(source: Source, file: BinaryIO) -> Iterator[Text]:
    rows = _cells(source, file)
    first = next(rows, None)
    if first is None:
        return
    number, row = first
    header = row if source.has_header else [str(column) for column in range(1, len(row) + 1)]
    text, pair = text_column_indices(source, header)
    if not source.has_header:
        yield _row_text(source, number, row, header, text, pair)
    for number, row in rows:
        if row != [""] or len(header) == 1:
            yield _row_text(source, number, row, header, text, pair)


def _tsv_rows(source: Source, file: BinaryIO, lines_before: int) -> Iterator[tuple[int, list[str]]]:
    for number, line in numbered_lines(source, file, lines_before):
        yield number, _strip_newline(line).split("\t")


def _csv_rows(source: Source, file: BinaryIO, lines_before: int) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader((line for _, line in numbered_lines(source, file, lines_before)), strict=True)
    while True:
        line = lines_before + reader.line_num + 1  # first line of the row; quoted cells may span several lines
        try:
            row = next(reader, None)
        except csv.Error as err:
            hint = " Is a closing quote missing?" if "limit" in str(err) else ""
            raise source.error_at(line, f"invalid CSV ({err}).{hint}") from err
        if row is None:
            return
        yield line, row or [""]


def text_column_indices(source: Source, header: Sequence[str]) -> tuple[int, int | None]:
    """Return the positions of the text columns in a header; raise if they are missing or ambiguous."""
    noun = "column" if source.has_header else "column number"
    text, pair = text_columns(source, header)
    if text is None:
        raise BadInput(
            f"{source.name} has the columns {format_names(header)}; use `text_column=` to name the text column."
        )
    for name in (text, pair):
        if name is not None and name not in header:
            raise BadInput(f"{source.name}: {UnknownName(noun, name, header)}")
        if name is not None and list(header).count(name) > 1:
            raise BadInput(f"{source.name} has two columns named {name!r}; rename one of them.")
    if pair is None and len(source.inputs or ()) == 2:
        raise BadInput(f"{source.name} has the columns {format_names(header)}; {missing_pair_message(source)}")
    return header.index(text), None if pair is None else header.index(pair)


def _row_text(
    source: Source, line: int, row: Sequence[str], header: Sequence[str], text: int, pair: int | None
) -> Text:
    if len(row) != len(header):
        raise _column_count_error(source, line, row, header)
    return row[text] if pair is None else (row[text], row[pair])


def _column_count_error(source: Source, line: int, row: Sequence[str], header: Sequence[str]) -> BadInput:
    separator = "tab" if source.format == "tsv" else "comma"
    plural = "" if len(row) == 1 else "s"
    expected = f"{len(header)} ({format_names(header)})"
    is_short = len(row) < len(header)
    advice = f"Is a {separator} missing?" if is_short else f"Is there an extra {separator}, or one inside a text?"
    if len(row) > len(header) and source.format == "csv":
        advice += " Put quotes around texts with commas."
    return source.error_at(line, f"{len(row)} column{plural}, expected {expected}. {advice}")


def format_names(names: Iterable[str]) -> str:
    """Join column names for a message, shortened if there are many."""
    shortened = [name if len(name) <= 40 else f"{name[:37]}..." for name in names]
    more = f", … ({len(shortened):,})" if len(shortened) > MAX_COLUMNS_SHOWN else ""
    return ", ".join(shortened[:MAX_COLUMNS_SHOWN]) + more


def _json_rows(source: Source, file: BinaryIO, lines_before: int = 0) -> Iterator[tuple[int, Any]]:
    return json_rows(numbered_lines(source, file, lines_before), source.error_at)


def _json_texts(source: Source, file: BinaryIO) -> Iterator[Text]:
    for number, row in _json_rows(source, file):
        yield extract_text(source, number, row)


def extract_text(source: Source, line: int, row: Any) -> Text:
    """Return the text of a row, or its pair of texts; a row is a dict by column or a plain text."""
    if isinstance(row, str) and source.text_column is None and source.pair_column is None:
        if len(source.inputs or ()) == 2:
            raise source.error_at(line, missing_pair_message(source))
        return check_utf8(source, line, row)
    if not isinstance(row, Mapping):
        raise source.error_at(
            line, f"expected a text or an object with a text field, got {type(row).__name__} {row!r:.40}."
        )
    text, pair = text_columns(source, row)
    if text is None:
        raise source.error_at(line, f"the fields are {format_names(row)}; use `text_column=` to name the text field.")
    if pair is None and len(source.inputs or ()) == 2:
        raise source.error_at(line, f"the fields are {format_names(row)}; {missing_pair_message(source)}")
    if source.inputs == RANKING_INPUTS and pair is not None and source.format not in ("tsv", "csv"):
        ranking = to_ranking({"query": row.get(text), "documents": row.get(pair)}, f"{source.name}, line {line}")
        return tuple(check_utf8(source, line, part) for part in ranking)
    first = _field(source, line, row, text)
    return first if pair is None else (first, _field(source, line, row, pair))


def _parquet_texts(source: Source, file: BinaryIO) -> Iterator[Text]:
    for number, row in parquet_rows(source):
        yield extract_text(source, number, row)


def _field(source: Source, line: int, row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise source.error_at(line, str(UnknownName("field", name, row)))
    if isinstance(row[name], list) and all(isinstance(word, str) for word in row[name]):
        return Words(check_utf8(source, line, word) for word in row[name])
    if not isinstance(row[name], str):
        raise source.error_at(
            line, f"field {name!r} is {row[name]!r:.40}, expected a string (token classification: or a list of words)."
        )
    return check_utf8(source, line, row[name])


def check_utf8(source: Source, line: int, text: str) -> str:
    """Return the text; raise if it cannot be encoded as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as err:
        raise source.error_at(
            line, f"character {err.start + 1} of the text is an unpaired surrogate (such as \\ud83d)."
        ) from err
    return text
