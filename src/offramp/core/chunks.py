"""Turn a stream of examples into batches: read it in chunks, sort each by length, batch by a token budget."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from offramp.answers.answer_type import AnswerType, Encoder
from offramp.core.batch import Batch, EncodedRows, Ints
from offramp.core.progress import Progress
from offramp.errors import BadValue

__all__ = [
    "ACCELERATOR_BATCH_TOKENS",
    "CHUNK",
    "Chunk",
    "batches_by_tokens",
    "chunks",
    "resolve_batch_tokens",
]

CHUNK = 4096  # maximum examples in a chunk
CHUNK_CHARACTERS = 4_000_000  # maximum characters in a chunk; bounds the memory
GROUP_FACTOR = 8  # with `together`, batches are larger: they run in parts of similar length (`parts.py`)
BATCH_TOKENS = 1024  # padded tokens in a batch on a CPU; larger batches do not fit into the cache
ACCELERATOR_BATCH_TOKENS = 16384

logger = logging.getLogger("offramp")


def resolve_batch_tokens(batch_tokens: int | None, device: torch.device) -> int:
    """Return the maximum padded tokens in a batch; None: the device's default."""
    if batch_tokens is None:
        return BATCH_TOKENS if device.type == "cpu" else ACCELERATOR_BATCH_TOKENS
    if batch_tokens < 1:
        raise BadValue(f"`batch_tokens` must be at least 1, got {batch_tokens}.")
    return batch_tokens


@dataclass(frozen=True)
class Chunk:
    """Encoded examples that are sorted by length and batched together; one chunk of a stream is in memory at a time."""

    offset: int  # number of examples in earlier chunks
    rows: EncodedRows
    order: Ints  # row indices sorted by length; with `together` the rows of a group are adjacent
    pad: int  # padding token
    device: torch.device
    batch_tokens: int  # maximum padded tokens in a batch
    together: bool = False  # never split a group across batches
    progress: Progress | None = None

    @property
    def examples(self) -> Any:
        """The examples that the rows encode."""
        return self.rows.examples

    def batches(self) -> Iterator[Batch]:
        """Yield batches of similar lengths; concatenated, their rows are the chunk's rows in `order`."""
        one_row_each = len(self.rows) == len(self.examples)
        for start, stop in self._batch_bounds():
            yield self.batch(self.order[start:stop])
            if self.progress is not None and one_row_each:
                self.progress.update(stop - start)
        if self.progress is not None and not one_row_each:
            self.progress.update(len(self.examples))

    def _batch_bounds(self) -> Iterator[tuple[int, int]]:
        lengths = self.rows.lengths[self.order]
        if not self.together:
            return batches_by_tokens(lengths, self.batch_tokens)
        group = self.rows.group[self.order]
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        stops = np.append(starts[1:], len(group))
        longest = np.maximum.reduceat(lengths, starts)
        return _group_bounds(starts, stops, longest, GROUP_FACTOR * self.batch_tokens)

    def batches_of(self, size: int) -> Iterator[tuple[Ints, Batch]]:
        """Yield batches of `size` rows of similar lengths, each with its row indices."""
        for start in range(0, len(self.order), size):
            rows = self.order[start : start + size]
            yield rows, self.batch(rows)

    def batch(self, rows: Ints) -> Batch:
        """Return the given rows, padded to the longest."""
        return Batch.from_rows(self.rows, rows, self.pad, self.device)

    @property
    def inverse_order(self) -> Ints:
        """The position of each row in `order`."""
        return np.argsort(self.order)


def chunks(
    encoder: Encoder,
    examples: Iterable[Any],
    batch_tokens: int,
    device: torch.device,
    *,
    pad: int = 0,
    limit: int = 0,
    title: str = "Predicting",
    progress: bool | None = None,
    quiet: bool = False,
    size: int = CHUNK,
    together: bool = False,
    names: str = AnswerType.input_names,
    describe: Callable[[int, int, int], str] = AnswerType.describe_truncated,
) -> Iterator[Chunk]:
    """Yield a stream's examples in chunks; unless `quiet`, warn at the end if texts exceeded `limit` tokens.

    `names` is the noun for the examples, and `describe` returns the warning.
    """
    total = len(examples) if isinstance(examples, Sized) else None
    stream = iter(examples)
    offset = truncated = 0
    with Progress(title, total, names, progress) as shown:
        while chunk := _take(stream, size):
            rows = encoder(chunk, offset)
            truncated += rows.truncated
            yield Chunk(offset, rows, _order(rows, together), pad, device, batch_tokens, together, shown)
            offset += len(chunk)
    if truncated and not quiet:
        logger.warning("%s", describe(truncated, offset, limit))


def _order(rows: EncodedRows, together: bool) -> Ints:
    """Return the row indices sorted by length; with `together`, groups sorted by their longest row."""
    if not together or not len(rows):
        return np.argsort(rows.lengths, kind="stable")
    longest = np.zeros(len(rows.examples), dtype=np.int64)
    np.maximum.at(longest, rows.group, rows.lengths)
    return np.lexsort((rows.group, longest[rows.group]))


def _take(stream: Iterator[Any], size: int) -> list[Any]:
    """Return the next chunk of a stream, reading no further than needed."""
    chunk: list[Any] = []
    characters = 0
    for example in itertools.islice(stream, size):
        chunk.append(example)
        characters += len(example) if isinstance(example, str) else len(str(example))
        if characters > CHUNK_CHARACTERS:
            break
    return chunk


def batches_by_tokens(lengths: Ints, batch_tokens: int) -> Iterator[tuple[int, int]]:
    """Split ascending lengths into (start, stop) ranges of at most `batch_tokens` padded tokens, or a single row."""
    start = 0
    while start < len(lengths):
        max_rows = max(1, batch_tokens // max(1, int(lengths[start])))
        candidates = lengths[start : start + max_rows]
        num_fitting = np.count_nonzero(candidates * np.arange(1, len(candidates) + 1) <= batch_tokens)
        stop = start + max(1, int(num_fitting))
        yield start, stop
        start = stop


def _group_bounds(starts: Ints, stops: Ints, longest: Ints, batch_tokens: int) -> Iterator[tuple[int, int]]:
    """The same for groups of rows, which are never split; a batch has at least one group."""
    first = 0
    for index in range(len(starts)):
        if index > first and (stops[index] - starts[first]) * longest[index] > batch_tokens:
            yield int(starts[first]), int(starts[index])
            first = index
    if len(starts):
        yield int(starts[first]), int(stops[-1])
