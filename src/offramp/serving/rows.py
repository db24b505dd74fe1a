"""Requests and their rows inside the engine, and which rows are run together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from offramp.core.chunks import Ragged
from offramp.policies import Policy

__all__ = ["Asked", "Full", "Replied", "Stopped", "Ticket", "TooLong", "Waiting", "alike", "joined", "tokens_of"]

Tokenised = tuple[Ragged, Ragged | None]
"""Tokens and their types, where the family has them."""


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
class Asked:
    """What a request wants beside its texts."""

    policy: Policy | None = None  # in place of the model's
    max_layers: int | None = None
    deadline: float | None = None  # by the monotonic clock: behind it rows leave at the first exit

    def is_late(self, now: float) -> bool:
        """Whether its deadline has passed."""
        return self.deadline is not None and now > self.deadline

    def kind(self, now: float) -> tuple[Policy | None, int | None, bool]:
        """What rows that are run together have in common."""
        return self.policy, self.max_layers, self.is_late(now)


@dataclass(frozen=True)
class Replied:
    """The answers to one request, in its order."""

    logits: NDArray[np.float32]  # (rows, classes)
    layers: NDArray[np.int64]  # (rows,)
    tokens: int
    outside: bool  # a policy, a budget or a deadline of its own: what was promised does not hold for it


@dataclass
class Ticket:
    """A request inside the engine."""

    ids: Ragged
    types: Ragged | None
    asked: Asked
    future: Future[Replied]
    logits: NDArray[np.float32]
    layers: NDArray[np.int64]
    drawn: NDArray[np.bool_]  # for the audit, before anything was decided
    left: int
    outside: bool = False
    arrived: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Waiting:
    """One row."""

    ticket: Ticket
    row: int
    length: int


def alike(window: list[Waiting], budget: int, now: float) -> list[Waiting]:
    """The oldest row and those of about its length, as many as fit: little padding, and nobody is passed over."""
    oldest = window[0]
    kind = oldest.ticket.asked.kind(now)
    rows = sorted((row for row in window if row.ticket.asked.kind(now) == kind), key=lambda row: row.length)
    low = high = next(place for place, row in enumerate(rows) if row is oldest)
    while True:
        shorter = rows[high].length - rows[low - 1].length if low else None
        longer = rows[high + 1].length - rows[high].length if high + 1 < len(rows) else None
        size = high - low + 2
        if shorter is not None and size * rows[high].length > budget:
            shorter = None
        if longer is not None and size * rows[high + 1].length > budget:
            longer = None
        if shorter is None and longer is None:
            return rows[low : high + 1]
        if longer is None or (shorter is not None and shorter <= longer):
            low -= 1
        else:
            high += 1


def tokens_of(row: Waiting) -> Tokenised:
    """One row's tokens alone: what keeps them does not keep its request."""

    def of(kind: Ragged | None) -> Ragged | None:
        if kind is None:
            return None
        return Ragged(kind.values[kind.starts[row.row] :][: row.length].copy(), np.array([row.length], dtype=np.int64))

    ids = of(row.ticket.ids)
    assert ids is not None
    return ids, of(row.ticket.types)


def joined(rows: Sequence[Tokenised]) -> Tokenised:
    """The tokens of rows of several requests."""

    def of(parts: list[Ragged]) -> Ragged:
        return Ragged(np.concatenate([one.values for one in parts]), np.concatenate([one.lengths for one in parts]))

    types = [one for _, one in rows if one is not None]
    return of([ids for ids, _ in rows]), of(types) if len(types) == len(rows) else None
