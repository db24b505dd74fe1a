"""Input files in parts of so many rows, each of which a worker can read by itself.

Of Parquet the row numbers are known. Of lines the bytes where a part begins are found in one pass over the file; a CSV
row may run over several lines. What gzip packed cannot be entered in the middle and is one part.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from offramp.data.reading import parquet_file, parquet_rows, read_lines, read_records
from offramp.data.source import LONGEST, PACKED, Source, lines_of, opened
from offramp.errors import BadInput

__all__ = ["Part", "read_part", "split"]


@dataclass(frozen=True)
class Part:
    """Rows of one file."""

    number: int  # among all parts of a job, from 0
    file: str
    before: int  # lines of the file before it; of Parquet rows
    rows: int | None = None  # of Parquet
    start: int | None = None  # the byte where it begins; None: the file is read from its beginning
    size: int | None = None  # in bytes


def split(sources: list[Source], rows: int) -> list[Part]:
    """All parts of all files, in order."""
    parts: list[Part] = []
    for source in sources:
        for before, of_parquet, start, size in _cuts(source, rows):
            parts.append(Part(len(parts), source.file, before, of_parquet, start, size))
    return parts


def _cuts(source: Source, rows: int) -> Iterator[tuple[int, int | None, int | None, int | None]]:
    if source.format == "parquet":
        total = parquet_file(source).metadata.num_rows
        yield from ((before, min(rows, total - before), None, None) for before in range(0, total, rows))
        return
    try:
        with Path(source.file).open("rb") as file:
            if file.peek(2)[:2] == PACKED:
                yield 0, None, None, None
            elif source.format == "csv":
                yield from _of_records(source, file, rows)
            else:
                yield from _of_lines(source, file, rows)
    except OSError as err:
        raise BadInput(f"Cannot read {source.name}: {err.strerror or err}.") from err


def _of_lines(source: Source, file: BinaryIO, rows: int) -> Iterator[tuple[int, None, int, int]]:
    line = 0
    if source.format == "tsv" and source.has_header:
        line += bool(file.readline(LONGEST + 1))
    start = file.tell()
    while taken := sum(1 for _ in itertools.islice(iter(lambda: file.readline(LONGEST + 1), b""), rows)):
        yield line, None, start, file.tell() - start
        line, start = line + taken, file.tell()


def _of_records(source: Source, file: BinaryIO, rows: int) -> Iterator[tuple[int, None, int, int]]:
    csv.field_size_limit(LONGEST)
    reader = csv.reader((text for _, text in lines_of(source, file)), strict=True)  # asks for a line when it needs one

    def taken(most: int) -> int:
        try:
            return sum(1 for _ in itertools.islice(reader, most))
        except csv.Error as err:
            raise source.at(reader.line_num, f"not CSV ({err}). Is a quote not closed?") from err

    taken(int(source.has_header))
    line, start = reader.line_num, file.tell()
    while taken(rows):
        yield line, None, start, file.tell() - start
        line, start = reader.line_num, file.tell()


def read_part(source: Source, part: Part, columns: list[str] | None) -> Iterator[tuple[int, Any]]:
    """Its rows, by column or as bare texts, each with its line in the file (of Parquet its row).

    `columns` are those that are wanted of Parquet, and all that a table has.
    """
    if source.format == "parquet":
        yield from parquet_rows(source, part.before, part.rows, columns)
    elif part.start is not None:
        try:
            with Path(source.file).open("rb") as file:
                file.seek(part.start)
                held = io.BytesIO(file.read(part.size))
        except OSError as err:
            raise BadInput(f"Cannot read {source.name}: {err.strerror or err}.") from err
        yield from read_lines(source, held, columns, part.before)
    elif source.format in ("csv", "tsv"):
        yield from read_records(source)
    else:
        with opened(source) as packed:
            yield from read_lines(source, packed, columns, 0)
