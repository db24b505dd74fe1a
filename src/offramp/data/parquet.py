"""Read rows of a Parquet file by number, without decoding a row group twice."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offramp.data.source import Source
from offramp.errors import BadInput
from offramp.files.storage import is_url, open_binary

__all__ = ["ParquetRows", "parquet_file", "parquet_metadata", "parquet_rows"]

BATCH_ROWS = 1024


def parquet_file(source: Source) -> Any:
    """Open a Parquet file without reading its rows."""
    try:
        from pyarrow import ArrowException  # pyarrow also raises plain OSErrors
        from pyarrow.parquet import ParquetFile
    except ImportError as err:
        raise BadInput("Reading Parquet needs pyarrow: pip install pyarrow.") from err
    try:
        return ParquetFile(open_binary(source.file) if is_url(source.file) else source.file)
    except (ArrowException, OSError) as err:
        raise BadInput(f"{source.name} cannot be read as Parquet: {str(err).splitlines()[0]}") from err


def parquet_metadata(source: Source) -> dict[bytes, bytes]:
    """Return the schema metadata of a Parquet file."""
    return dict(parquet_file(source).schema_arrow.metadata or {})


def parquet_rows(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield all rows as dicts by column, numbered from 1."""
    yield from ParquetRows(source).read()


class ParquetRows:
    """A reader of ranges of rows that remembers its position.

    A row group can only be decoded from its start. Ranges that are read in ascending order decode each row group once,
    however many ranges it has; row groups without requested rows are not read.
    """

    def __init__(self, source: Source, columns: Sequence[str] | None = None):
        self.source, self.columns = source, columns
        self.file = parquet_file(source)
        sizes = [self.file.metadata.row_group(group).num_rows for group in range(self.file.num_row_groups)]
        self.starts = [0, *itertools.accumulate(sizes)]  # of each row group, and the end of the last one
        self.group = -1  # the row group that is being decoded
        self.batches: Iterator[Any] = iter(())
        self.batch: Any = None  # decoded last
        self.batch_start = 0  # row number of its first row, from 0

    def read(self, first: int = 0, rows: int | None = None) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield numbered rows (from 1) as dicts by column: all rows, or `rows` of them after the first `first`."""
        stop = self.starts[-1] if rows is None else min(first + rows, self.starts[-1])
        while first < stop:
            self._move_to(first)
            low, high = first - self.batch_start, min(stop - self.batch_start, self.batch.num_rows)
            yield from enumerate(self.batch.slice(low, high - low).to_pylist(), first + 1)
            first = self.batch_start + high

    def _move_to(self, row: int) -> None:
        """Decode until the current batch contains the row."""
        group = bisect.bisect_right(self.starts, row) - 1
        if group != self.group or self.batch is None or row < self.batch_start:
            self.group, self.batch, self.batch_start = group, None, self.starts[group]
            self.batches = self.file.iter_batches(BATCH_ROWS, row_groups=[group], columns=self.columns)
        while self.batch is None or row >= self.batch_start + self.batch.num_rows:
            self.batch_start += 0 if self.batch is None else self.batch.num_rows
            self.batch = self._next_batch()

    def _next_batch(self) -> Any:
        from pyarrow import ArrowException

        try:
            return next(self.batches)
        except (ArrowException, OSError, StopIteration) as err:
            self.group = -1
            reason = next(iter(str(err).splitlines()), "it has fewer rows than its footer says")
            raise BadInput(f"{self.source.name} cannot be read as Parquet: {reason}") from err
