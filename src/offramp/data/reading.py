"""Texts, pairs and labelled rows out of files: plain text, TSV, CSV, JSON lines, Parquet, one row at a time."""

from __future__ import annotations

import csv
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from offramp.data.source import (
    FORMATS,
    LONGEST,
    Source,
    check_file,
    format_of,
    lines_of,
    no_partner,
    opened,
    text_columns,
)
from offramp.errors import BadInput, UnknownName

__all__ = [
    "FORMATS",
    "Source",
    "Text",
    "check_file",
    "columns_of",
    "format_of",
    "parquet_file",
    "parquet_metadata",
    "parquet_rows",
    "read_cells",
    "read_lines",
    "read_records",
    "read_texts",
    "text_of",
    "whole",
]

SHOWN = 20  # columns that a message names
LOOKED_AT = 100  # JSON lines whose fields tell the columns

Text = str | tuple[str, str]


def read_texts(source: Source) -> Iterator[Text]:
    """The texts of a source, in order; a faulty row is named and ends the reading."""
    if source.format not in FORMATS:
        raise UnknownName("format", source.format, FORMATS)
    if source.format == "text" and (source.text_column or source.pair_column):
        raise BadInput(
            f"{source.name} is read as plain text, which has no columns; give `input_format='tsv'`, csv or jsonl."
        )
    check_file(source)
    if source.format == "text" and len(source.inputs or ()) == 2:
        raise BadInput(f"{source.name} is read as plain text; {no_partner(source)}")
    return _read(source)


def columns_of(source: Source) -> list[str] | None:
    """The names of a file's columns (JSON lines: of its first rows); None where rows are bare texts."""
    check_file(source)
    if source.format == "text":
        return None
    if source.format == "parquet":
        return [str(name) for name in parquet_file(source).schema_arrow.names]
    if source.format == "jsonl":
        with opened(source) as file:
            first = [row for _, row in itertools.islice(_objects(source, file), LOOKED_AT)]
        if any(not isinstance(row, Mapping) for row in first):
            return None
        return list(dict.fromkeys(name for row in first for name in row))
    header = next(read_cells(source), (0, [""]))[1]
    return header if source.has_header else [str(column) for column in range(1, len(header) + 1)]


def read_records(source: Source, odd: list[int] | None = None) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows by column, each with the line that it starts on; blank lines are passed over.

    Rows with another number of columns end the reading, or are left out and their lines noted in `odd`.
    """
    check_file(source)
    try:
        if source.format == "parquet":
            yield from parquet_rows(source)
        elif source.format == "jsonl":
            with opened(source) as file:
                for line, row in _objects(source, file):
                    if not isinstance(row, Mapping):
                        raise source.at(line, "expected an object with a field for each column.")
                    yield line, row
        else:
            yield from _cell_records(source, odd)
    except OSError as err:
        raise BadInput(f"Cannot read {source.name}: {err.strerror or err}.") from err


def _cell_records(source: Source, odd: list[int] | None) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = read_cells(source)
    first = next(rows, None)
    if first is None:
        return
    header = first[1] if source.has_header else [str(column) for column in range(1, len(first[1]) + 1)]
    if not source.has_header:
        rows = itertools.chain([first], rows)
    yield from _by_column(source, header, rows, odd)


def _by_column(
    source: Source, header: Sequence[str], rows: Iterable[tuple[int, list[str]]], odd: list[int] | None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if len(set(header)) < len(header):
        twice = next(name for name, times in Counter(header).items() if times > 1)
        raise BadInput(f"{source.name} has two columns called {twice!r}; rename one of them.")
    for line, cells in rows:
        if cells == [""] and len(header) > 1:
            continue
        if len(cells) != len(header):
            if odd is None:
                raise _miscounted(source, line, cells, header)
            odd.append(line)
            continue
        yield line, dict(zip(header, cells, strict=True))


def read_cells(source: Source) -> Iterator[tuple[int, list[str]]]:
    """The cells of a TSV or CSV file, header and all, each row with the line that it starts on."""
    with opened(source) as file:
        yield from _cells(source, file)


def _cells(source: Source, file: BinaryIO, before: int = 0) -> Iterator[tuple[int, list[str]]]:
    return _csv_rows(source, file, before) if source.format == "csv" else _tsv_rows(source, file, before)


def read_lines(source: Source, file: BinaryIO, columns: Sequence[str] | None, before: int) -> Iterator[tuple[int, Any]]:
    """The rows among a file's lines from some line on: each with its number, by column or as a bare text."""
    if source.format == "text":
        yield from ((line, _bare(text)) for line, text in lines_of(source, file, before))
    elif source.format == "jsonl":
        yield from _objects(source, file, before)
    else:
        yield from _by_column(source, columns or (), _cells(source, file, before), None)


def _read(source: Source) -> Iterator[Text]:
    readers = {"text": _plain, "tsv": _table, "csv": _table, "jsonl": _json, "parquet": _parquet_texts}
    reader = readers[source.format]
    found = False
    try:
        with opened(source) as file:
            for text in reader(source, file):
                found = True
                yield text
    except OSError as err:
        raise BadInput(f"Cannot read {source.name}: {err.strerror or err}.") from err
    if not found:
        raise BadInput(f"{source.name} is empty: there is nothing to answer.")


def _bare(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _plain(source: Source, file: BinaryIO) -> Iterator[Text]:
    for _, line in lines_of(source, file):
        yield _bare(line)


def _table(source: Source, file: BinaryIO) -> Iterator[Text]:
    rows = _cells(source, file)
    first = next(rows, None)
    if first is None:
        return
    number, row = first
    header = row if source.has_header else [str(column) for column in range(1, len(row) + 1)]
    text, pair = _columns(source, header)
    if not source.has_header:
        yield _cell(source, number, row, header, text, pair)
    for number, row in rows:
        if row != [""] or len(header) == 1:
            yield _cell(source, number, row, header, text, pair)


def _tsv_rows(source: Source, file: BinaryIO, before: int) -> Iterator[tuple[int, list[str]]]:
    for number, line in lines_of(source, file, before):
        yield number, _bare(line).split("\t")


def _csv_rows(source: Source, file: BinaryIO, before: int) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST)
    reader = csv.reader((line for _, line in lines_of(source, file, before)), strict=True)
    while True:
        line = before + reader.line_num + 1  # where the row starts; a quoted cell may run over several lines
        try:
            row = next(reader, None)
        except csv.Error as err:
            hint = " Is a quote not closed?" if "limit" in str(err) else ""
            raise source.at(line, f"not CSV ({err}).{hint}") from err
        if row is None:
            return
        yield line, row or [""]


def _columns(source: Source, header: Sequence[str]) -> tuple[int, int | None]:
    kind = "column" if source.has_header else "column number"
    text, pair = text_columns(source, header)
    if text is None:
        raise BadInput(
            f"{source.name} has the columns {listed(header)}; say with `text_column=` which one holds the text."
        )
    for name in (text, pair):
        if name is not None and name not in header:
            raise BadInput(f"{source.name}: {UnknownName(kind, name, header)}")
        if name is not None and list(header).count(name) > 1:
            raise BadInput(f"{source.name} has two columns called {name!r}; rename one of them.")
    if pair is None and len(source.inputs or ()) == 2:
        raise BadInput(f"{source.name} has the columns {listed(header)}; {no_partner(source)}")
    return header.index(text), None if pair is None else header.index(pair)


def _cell(source: Source, line: int, row: Sequence[str], header: Sequence[str], text: int, pair: int | None) -> Text:
    if len(row) != len(header):
        raise _miscounted(source, line, row, header)
    return row[text] if pair is None else (row[text], row[pair])


def _miscounted(source: Source, line: int, row: Sequence[str], header: Sequence[str]) -> BadInput:
    mark = "tab" if source.format == "tsv" else "comma"
    plural = "" if len(row) == 1 else "s"
    expected = f"{len(header)} ({listed(header)})"
    advice = f"Is a {mark} missing?" if len(row) < len(header) else f"Is there a {mark} too many, or one in a text?"
    if len(row) > len(header) and source.format == "csv":
        advice += " Put quotes around texts with commas."
    return source.at(line, f"{len(row)} column{plural}, expected {expected}. {advice}")


def listed(names: Iterable[str]) -> str:
    """Columns as a message names them: not thousands."""
    every = [name if len(name) <= 40 else f"{name[:37]}..." for name in names]
    return ", ".join(every[:SHOWN]) + (f", … ({len(every):,})" if len(every) > SHOWN else "")


def _objects(source: Source, file: BinaryIO, before: int = 0) -> Iterator[tuple[int, Any]]:
    """What the lines of JSON lines hold."""
    for number, line in lines_of(source, file, before):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as err:
            raise source.at(number, f"not JSON ({err.msg} at column {err.colno}).") from err
        except (ValueError, RecursionError) as err:  # a number of thousands of digits, endless brackets
            raise source.at(number, f"not JSON that can be read ({err}).") from err


def _json(source: Source, file: BinaryIO) -> Iterator[Text]:
    for number, row in _objects(source, file):
        yield text_of(source, number, row)


def text_of(source: Source, line: int, row: Any) -> Text:
    """The text of a row, or the text and its partner: of its columns, or the row itself where it is a bare text."""
    if isinstance(row, str) and source.text_column is None and source.pair_column is None:
        if len(source.inputs or ()) == 2:
            raise source.at(line, no_partner(source))
        return whole(source, line, row)
    if not isinstance(row, Mapping):
        raise source.at(line, "expected an object with a text field.")
    text, pair = text_columns(source, row)
    if text is None:
        raise source.at(line, f"the fields are {listed(row)}; say with `text_column=` which one holds the text.")
    if pair is None and len(source.inputs or ()) == 2:
        raise source.at(line, f"the fields are {listed(row)}; {no_partner(source)}")
    first = _field(source, line, row, text)
    return first if pair is None else (first, _field(source, line, row, pair))


def parquet_file(source: Source) -> Any:
    """A Parquet file, its rows unread."""
    try:
        from pyarrow import ArrowException  # some of its errors are plain OSErrors
        from pyarrow.parquet import ParquetFile
    except ImportError as err:
        raise BadInput("Reading Parquet needs pyarrow: pip install pyarrow.") from err
    try:
        return ParquetFile(source.file)
    except (ArrowException, OSError) as err:
        raise BadInput(f"{source.name} cannot be read as Parquet: {str(err).splitlines()[0]}") from err


def parquet_metadata(source: Source) -> dict[bytes, bytes]:
    """What its writer noted about a Parquet file."""
    return dict(parquet_file(source).schema_arrow.metadata or {})


def parquet_rows(
    source: Source, first: int = 0, rows: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows by column, each with its number from 1: all, or so many from some row on, of the groups that hold them."""
    from pyarrow import ArrowException

    file = parquet_file(source)
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    starts = [0, *itertools.accumulate(sizes)]
    stop = starts[-1] if rows is None else min(first + rows, starts[-1])
    groups = [group for group, size in enumerate(sizes) if starts[group] < stop and starts[group] + size > first]
    if not groups:
        return
    here = starts[groups[0]]
    batches = file.iter_batches(1024, row_groups=groups, columns=columns)
    while here < stop:
        try:
            batch = next(batches)
        except (ArrowException, OSError) as err:
            raise BadInput(f"{source.name} cannot be read as Parquet: {str(err).splitlines()[0]}") from err
        low, high = max(first - here, 0), min(stop - here, batch.num_rows)
        yield from enumerate(batch.slice(low, max(high - low, 0)).to_pylist(), here + low + 1)
        here += batch.num_rows


def _parquet_texts(source: Source, file: BinaryIO) -> Iterator[Text]:
    for number, row in parquet_rows(source):
        yield text_of(source, number, row)


def _field(source: Source, line: int, row: Mapping[str, Any], name: str) -> str:
    if name not in row:
        raise source.at(line, str(UnknownName("field", name, row)))
    if not isinstance(row[name], str):
        raise source.at(line, f"field {name!r} holds {row[name]!r:.40}, expected a string.")
    return whole(source, line, row[name])


def whole(source: Source, line: int, text: str) -> str:
    """A text, unless it cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as err:
        raise source.at(
            line, f"character {err.start + 1} of the text is half of a pair (\\ud83d or the like)."
        ) from err
    return text
