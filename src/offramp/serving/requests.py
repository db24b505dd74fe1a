"""Requests and their rows inside the engine, and which rows are run together."""

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

__all__ = ["Full", "QueuedRows", "Request", "RequestOptions", "Response", "Stopped", "TooLong", "alike", "queued"]


class Full(Exception):
    """The queue has no room; try again after so many seconds."""

    def __init__(self, seconds: float):
        super().__init__("The queue is full.")
        self.seconds = seconds


class TooLong(Exception):
    """A text has more tokens than the model takes."""


class Stopped(Exception):
    """The server is not ready, or drains."""


@dataclass(frozen=True)
class RequestOptions:
    """What a request asks for beside its texts."""

    policy: Policy | None = None  # instead of the model's
    max_layers: int | None = None
    deadline: float | None = None  # by the monotonic clock: after it rows exit at the first exit

    def is_late(self, now: float) -> bool:
        """Whether its deadline has passed."""
        return self.deadline is not None and now > self.deadline

    def kind(self, now: float) -> tuple[Policy | None, int | None, bool]:
        """What rows that are run together have in common."""
        return self.policy, self.max_layers, self.is_late(now)


@dataclass(frozen=True)
class Response:
    """The answers to one request, in its order."""

    answers: Answers
    tokens: int
    outside: bool  # a policy, a budget or a deadline of its own: the guarantee does not hold for it


@dataclass
class Request:
    """A request inside the engine."""

    rows: EncodedRows
    options: RequestOptions
    future: Future[Response]
    outputs: RowOutputs  # filled in as rows exit
    drawn: NDArray[np.bool_]  # (examples,), for the audit, before anything was decided
    outside: bool = False
    arrived: float = field(default_factory=time.monotonic)
    left: int = 0  # rows that have not exited
    left_of: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # the same, by example

    def __post_init__(self) -> None:
        self.left, self.left_of = len(self.rows), np.bincount(self.rows.group, minlength=len(self.rows.examples))


@dataclass(frozen=True)
class QueuedRows:
    """One row of a request; or, for policies that look at groups, all rows of an example."""

    request: Request
    rows: tuple[int, ...]
    length: int  # of the longest


def queued(request: Request, together: bool) -> Iterator[QueuedRows]:
    """A request's rows, as the queue takes them."""
    lengths, group = request.rows.lengths, request.rows.group
    if not together:
        yield from (QueuedRows(request, (row,), int(length)) for row, length in enumerate(lengths.tolist()))
        return
    for example in range(len(request.rows.examples)):
        rows = np.flatnonzero(group == example)
        yield QueuedRows(request, tuple(rows.tolist()), int(lengths[rows].max()))


def alike(window: list[QueuedRows], budget: int, now: float) -> list[QueuedRows]:
    """The oldest row and those of about its length, as many as fit: little padding, and none is passed over."""
    oldest = window[0]
    kind = oldest.request.options.kind(now)
    rows = sorted((row for row in window if row.request.options.kind(now) == kind), key=lambda row: row.length)
    low = high = next(place for place, row in enumerate(rows) if row is oldest)
    size = len(oldest.rows)
    while True:
        shorter = rows[high].length - rows[low - 1].length if low else None
        longer = rows[high + 1].length - rows[high].length if high + 1 < len(rows) else None
        if shorter is not None and (size + len(rows[low - 1].rows)) * rows[high].length > budget:
            shorter = None
        if longer is not None and (size + len(rows[high + 1].rows)) * rows[high + 1].length > budget:
            longer = None
        if shorter is None and longer is None:
            return rows[low : high + 1]
        if longer is None or (shorter is not None and shorter <= longer):
            low -= 1
            size += len(rows[low].rows)
        else:
            high += 1
            size += len(rows[high].rows)
