"""From examples to batches: chunks of a stream, sorted by length, so many tokens at a time."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from offramp.answers.answer_type import Encoder
from offramp.core.batch import Batch, EncodedRows, Ints
from offramp.errors import BadValue

__all__ = ["BATCH_TOKENS_ELSEWHERE", "CHUNK", "Chunk", "batches_by_tokens", "chunks", "padded_tokens"]

CHUNK = 4096  # examples that are sorted together, and
CHUNK_CHARACTERS = 4_000_000  # how long they may be together: what bounds the memory of a long stream
BATCH_TOKENS = 1024  # padded tokens in a batch on a CPU, where larger ones leave the cache
BATCH_TOKENS_ELSEWHERE = 16384  # an accelerator wants more at once

logger = logging.getLogger("offramp")


def padded_tokens(batch_tokens: int | None, device: torch.device) -> int:
    """Padded tokens in a batch, as given or as suits the device."""
    if batch_tokens is None:
        return BATCH_TOKENS if device.type == "cpu" else BATCH_TOKENS_ELSEWHERE
    if batch_tokens < 1:
        raise BadValue(f"`batch_tokens` is {batch_tokens}; it must be at least 1.")
    return batch_tokens


@dataclass(frozen=True)
class Chunk:
    """Examples that are sorted together, as rows; at most one chunk of a stream is in memory at a time."""

    first: int  # examples of the stream that came before
    rows: EncodedRows
    order: Ints  # of the rows, by length; rows of a group stay together where a policy needs it
    pad: int
    device: torch.device
    budget: int
    together: bool = False  # a group is never cut by the end of a batch
    bar: Any = None

    @property
    def examples(self) -> Any:
        """What it was made of."""
        return self.rows.examples

    def batches(self) -> Iterator[Batch]:
        """Batches of like lengths; one after the other their rows are the chunk's in `order`."""
        several = len(self.rows) != len(self.examples)
        for start, stop in self._cuts():
            yield self.batch(self.order[start:stop])
            if self.bar is not None and not several:
                self.bar.update(stop - start)
        if self.bar is not None and several:
            self.bar.update(len(self.examples))

    def _cuts(self) -> Iterator[tuple[int, int]]:
        lengths = self.rows.lengths[self.order]
        if not self.together:
            return batches_by_tokens(lengths, self.budget)
        group = self.rows.group[self.order]
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        stops = np.append(starts[1:], len(group))
        longest = np.maximum.reduceat(lengths, starts)
        return _whole_groups(starts, stops, longest, self.budget)

    def of_rows(self, size: int) -> Iterator[tuple[Ints, Batch]]:
        """Batches of so many rows of like lengths, and which rows these are."""
        for start in range(0, len(self.order), size):
            rows = self.order[start : start + size]
            yield rows, self.batch(rows)

    def batch(self, rows: Ints) -> Batch:
        """Some rows, padded to the longest of them."""
        return Batch.of_rows(self.rows, rows, self.pad, self.device)

    @property
    def back(self) -> Ints:
        """Where each row stands among the batches' rows."""
        return np.argsort(self.order)


def chunks(
    encoder: Encoder,
    examples: Iterable[Any],
    budget: int,
    device: torch.device,
    *,
    pad: int = 0,
    limit: int = 0,
    progress: bool | None = None,
    quiet: bool = False,
    size: int = CHUNK,
    together: bool = False,
) -> Iterator[Chunk]:
    """A stream's examples, chunk by chunk; reports at the end, unless `quiet`, how many were longer than `limit`."""
    total = len(examples) if isinstance(examples, Sized) else None
    hidden = None if progress is None else not progress  # None: shown on a terminal, and only for long work
    stream = iter(examples)
    seen = truncated = 0
    with tqdm(total=total, unit=" texts", disable=hidden, delay=0 if progress else 2, leave=False) as bar:
        while some := _take(stream, size):
            rows = encoder(some, seen)
            truncated += rows.truncated
            yield Chunk(seen, rows, _order(rows, together), pad, device, budget, together, bar)
            seen += len(some)
    if truncated and not quiet:
        are, they = ("texts are", "they were") if truncated > 1 else ("text is", "it was")
        logger.warning("%d %s longer than %d tokens; %s cut there.", truncated, are, limit, they)


def _order(rows: EncodedRows, together: bool) -> Ints:
    """By length; or groups by their longest row, each in its own order."""
    if not together or not len(rows):
        return np.argsort(rows.lengths, kind="stable")
    longest = np.zeros(len(rows.examples), dtype=np.int64)
    np.maximum.at(longest, rows.group, rows.lengths)
    return np.lexsort((rows.group, longest[rows.group]))


def _take(stream: Iterator[Any], size: int) -> list[Any]:
    """The next chunk of a stream; what is not needed for it is not asked for."""
    chunk: list[Any] = []
    characters = 0
    for example in itertools.islice(stream, size):
        chunk.append(example)
        characters += len(example) if isinstance(example, str) else len(str(example))
        if characters > CHUNK_CHARACTERS:
            break
    return chunk


def batches_by_tokens(lengths: Ints, budget: int) -> Iterator[tuple[int, int]]:
    """Cut ascending lengths into runs whose rows times longest row stay within the budget (one row always fits)."""
    start = 0
    while start < len(lengths):
        most = max(1, budget // max(1, int(lengths[start])))
        run = lengths[start : start + most]
        fits = np.count_nonzero(run * np.arange(1, len(run) + 1) <= budget)  # ascending, so these come first
        stop = start + max(1, int(fits))
        yield start, stop
        start = stop


def _whole_groups(starts: Ints, stops: Ints, longest: Ints, budget: int) -> Iterator[tuple[int, int]]:
    """The same for groups of rows, none of which is cut (one group always fits)."""
    first = 0
    for place in range(len(starts)):
        if place > first and (stops[place] - starts[first]) * longest[place] > budget:
            yield int(starts[first]), int(starts[place])
            first = place
    if len(starts):
        yield int(starts[first]), int(stops[-1])
