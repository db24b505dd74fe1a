"""Requests and their rows inside the engine, and which rows are batched together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from offramp.answers.answer import Answers, RowOutputs
from offramp.core.batch import EncodedRows
from offramp.policies import Policy

__all__ = [
    "QueueFull",
    "QueueItem",
    "QueuedRequest",
    "RequestBatch",
    "RequestOptions",
    "RequestResult",
    "TextTooLong",
    "Unavailable",
    "queue_items",
    "select_batch",
]


class QueueFull(Exception):
    """The queue is full; retry after `seconds`."""

    def __init__(self, seconds: float):
        super().__init__("The request queue is full; retry later.")
        self.seconds = seconds


class TextTooLong(Exception):
    """A text has more tokens than the model accepts."""


class Unavailable(Exception):
    """The server is not ready, or is shutting down."""


@dataclass(frozen=True)
class RequestOptions:
    """Options of a single request."""

    policy: Policy | None = None  # instead of the model's policy
    max_layers: int | None = None
    deadline: float | None = None  # monotonic clock; past it, rows exit at the first exit

    def batch_key(self, now: float) -> tuple[Policy | None, int | None, bool]:
        """Return what all rows of a batch share: policy, maximum layers, and whether their deadline has passed."""
        return self.policy, self.max_layers, self.deadline is not None and now > self.deadline


@dataclass(frozen=True)
class RequestResult:
    """The predictions for a request, in the order of its texts."""

    answers: Answers
    tokens: int
    outside: bool  # the request set a policy or max_layers, or missed its deadline: no guarantee


@dataclass
class QueuedRequest:
    """A request inside the engine."""

    rows: EncodedRows
    options: RequestOptions
    future: Future[RequestResult]
    outputs: RowOutputs  # filled in as rows exit
    drawn: NDArray[np.bool_]  # (examples,), sampled for the audit and not predicted yet; see `AuditQueue`
    outside: bool = False
    arrived: float = field(default_factory=time.monotonic)
    pending: int = 0  # rows that have not exited yet
    pending_per_example: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        self.pending = len(self.rows)
        self.pending_per_example = np.bincount(self.rows.group, minlength=len(self.rows.examples))


@dataclass(frozen=True)
class QueueItem:
    """One row of a request; for policies that see groups, all rows of an example."""

    request: QueuedRequest
    rows: tuple[int, ...]
    length: int  # tokens of the longest row


def queue_items(request: QueuedRequest, grouped: bool) -> Iterator[QueueItem]:
    """Yield a request's rows as queue items; `grouped` keeps the rows of an example together."""
    lengths, group = request.rows.lengths, request.rows.group
    if not grouped:
        yield from (QueueItem(request, (row,), int(length)) for row, length in enumerate(lengths.tolist()))
        return
    for example in range(len(request.rows.examples)):
        rows = np.flatnonzero(group == example)
        yield QueueItem(request, tuple(rows.tolist()), int(lengths[rows].max()))


@dataclass(frozen=True)
class RequestBatch:
    """Queue items that run together, and the options that they share."""

    items: tuple[QueueItem, ...]
    policy: Policy | None = None  # of the requests; None: the engine's
    max_layers: int | None = None
    is_late: bool = False  # the deadline of every item had passed when the batch was selected


def select_batch(window: list[QueueItem], budget: int, now: float) -> RequestBatch:
    """Return the oldest item and items of similar length with the same options, within `budget` padded tokens.

    Similar lengths keep padding low; always including the oldest item prevents starvation. Whether a row is late is
    decided here and nowhere else, by comparing its own deadline with `now`.
    """
    oldest = window[0]
    key = oldest.request.options.batch_key(now)
    items = sorted(
        (item for item in window if item.request.options.batch_key(now) == key), key=lambda item: item.length
    )
    low = high = next(index for index, item in enumerate(items) if item is oldest)
    size = len(oldest.rows)
    while True:
        shorter = items[high].length - items[low - 1].length if low else None
        longer = items[high + 1].length - items[high].length if high + 1 < len(items) else None
        if shorter is not None and (size + len(items[low - 1].rows)) * items[high].length > budget:
            shorter = None
        if longer is not None and (size + len(items[high + 1].rows)) * items[high + 1].length > budget:
            longer = None
        if shorter is None and longer is None:
            return RequestBatch(tuple(items[low : high + 1]), *key)
        if longer is None or (shorter is not None and shorter <= longer):
            low -= 1
            size += len(items[low].rows)
        else:
            high += 1
            size += len(items[high].rows)
