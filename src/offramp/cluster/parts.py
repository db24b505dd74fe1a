"""Split input files into parts of a fixed number of rows, which workers read independently.

Parquet files are split by row number; a worker that reads several parts of one row group decodes it once. For text
formats, one pass over the file finds the byte offsets of the parts; a CSV row can span several lines. A gzip file and a
JSON array have no random access and are single parts.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from offramp.data.parquet import ParquetRows, parquet_file
from offramp.data.reading import read_lines, read_records
from offramp.data.source import GZIP_MAGIC, MAX_LINE_BYTES, Source, numbered_lines, open_source
from offramp.errors import BadInput
from offramp.files.storage import open_binary, read_range

__all__ = ["Part", "PartReader", "split"]


@dataclass(frozen=True)
class Part:
    """A range of rows in a file."""

    number: int  # among all parts of a job, from 0
    file: str
    before: int  # lines (Parquet: rows) of the file before this part
    rows: int | None = None  # Parquet only
    start: int | None = None  # byte offset; None: read from the beginning of the file
    size: int | None = None  # in bytes


def split(sources: list[Source], rows: int) -> list[Part]:
    """Return the parts of all files, in order."""
    parts: list[Part] = []
    for source in sources:
        for before, num_rows, start, size in _ranges(source, rows):
            parts.append(Part(len(parts), source.file, before, num_rows, start, size))
    return parts


def _ranges(source: Source, rows: int) -> Iterator[tuple[int, int | None, int | None, int | None]]:
    if source.format == "parquet":
        total = parquet_file(source).metadata.num_rows
        yield from ((before, min(rows, total - before), None, None) for before in range(0, total, rows))
        return
    try:
        with open_binary(source.file) as file:
            start = cast(io.BufferedReader, file).peek(64)
            is_array = source.format == "jsonl" and start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["
            if start[:2] == GZIP_MAGIC or is_array:
                yield 0, None, None, None  # no random access
            elif source.format == "csv":
                yield from _csv_ranges(source, file, rows)
            else:
                yield from _line_ranges(source, file, rows)
    except OSError as err:
        raise BadInput(f"Cannot read {source.name}: {err.strerror or err}.") from err


def _line_ranges(source: Source, file: BinaryIO, rows: int) -> Iterator[tuple[int, None, int, int]]:
    line = 0
    if source.format == "tsv" and source.has_header:
        line += bool(file.readline(MAX_LINE_BYTES + 1))
    start = file.tell()
    while count := sum(1 for _ in itertools.islice(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), rows)):
        yield line, None, start, file.tell() - start
        line, start = line + count, file.tell()


def _csv_ranges(source: Source, file: BinaryIO, rows: int) -> Iterator[tuple[int, None, int, int]]:
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader((text for _, text in numbered_lines(source, file)), strict=True)  # reads lazily

    def skip(count: int) -> int:
        try:
            return sum(1 for _ in itertools.islice(reader, count))
        except csv.Error as err:
            raise source.error_at(reader.line_num, f"invalid CSV ({err}); check for an unclosed quote.") from err

    skip(int(source.has_header))
    line, start = reader.line_num, file.tell()
    while skip(rows):
        yield line, None, start, file.tell() - start
        line, start = reader.line_num, file.tell()


class PartReader:
    """Reads parts one after the other; the open Parquet file is kept for the next part."""

    def __init__(self) -> None:
        self.parquet: ParquetRows | None = None

    def read(
        self, source: Source, part: Part, columns: list[str] | None, id_column: str | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield (line number, row) for each row of a part; for Parquet, the row number.

        A row is a dict by column, or a text. `columns`: for Parquet those to read, for other tables all of them.
        """
        if source.format == "parquet":
            yield from self._parquet_rows(source, columns).read(part.before, part.rows)
        elif part.start is not None:
            try:
                content = io.BytesIO(read_range(source.file, part.start, part.size))
            except OSError as err:
                raise BadInput(f"Cannot read {source.name}: {err.strerror or err}.") from err
            yield from read_lines(source, content, columns, part.before)
        elif source.format in ("csv", "tsv"):
            yield from read_records(source, used=[] if id_column is None else [id_column])
        else:
            with open_source(source) as file:
                yield from read_lines(source, file, columns, 0)

    def _parquet_rows(self, source: Source, columns: list[str] | None) -> ParquetRows:
        if self.parquet is None or (self.parquet.source, self.parquet.columns) != (source, columns):
            self.parquet = ParquetRows(source, columns)
        return self.parquet
