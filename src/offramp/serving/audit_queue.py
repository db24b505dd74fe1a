"""Which predictions are audited: a random sample, a queue of limited length, and a share of the model's time.

The tests of `audit.py` need an unbiased sample. An example is drawn at random, or skipped because the queue is full,
when its request arrives: before it is predicted, and without looking at its text. Drawn examples are audited in the
order in which they were predicted, so that none overtakes another because it is shorter or exited earlier.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import numpy as np

from offramp.answers.answer import Answers
from offramp.core.batch import EncodedRows
from offramp.serving.requests import QueuedRequest

__all__ = ["AuditQueue", "PendingAudit", "TimeShare"]

MAX_DRAWN = 64  # drawn examples that are not audited yet; under load a longer queue only makes audits later
MAX_EXAMPLES = 8  # examples per step
SAVED_SECONDS = 1.0  # while no audit is pending, time is saved for at most this long


@dataclass(frozen=True)
class PendingAudit:
    """A predicted example that waits for its audit."""

    rows: EncodedRows  # of this example
    early: Answers  # the prediction that was returned
    is_full: bool  # all of its rows ran through all layers


class AuditQueue:
    """Examples that were drawn for the audit; requests are added and cancelled by several threads."""

    def __init__(self, fraction: float):
        self.fraction = fraction
        self.skipped = 0  # drawn while the queue was full
        self.sampled = 0  # drawn and predicted, or skipped
        self._pending: deque[PendingAudit] = deque()
        self._unpredicted = 0  # drawn, but not predicted yet
        self._random = np.random.default_rng()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pending)

    def draw(self, request: QueuedRequest) -> None:
        """Draw examples of a new request at random; if the queue has too few places, skip some of them at random."""
        drawn = np.flatnonzero(self._random.random(len(request.rows.examples)) < self.fraction)
        with self._lock:
            places = max(0, MAX_DRAWN - len(self._pending) - self._unpredicted)
            kept = self._random.permutation(drawn)[:places]
            self.sampled += len(drawn) - len(kept)  # before the others: readers never see more skipped than sampled
            self.skipped += len(drawn) - len(kept)
            self._unpredicted += len(kept)
            request.drawn[kept] = True
        if len(kept):
            request.future.add_done_callback(lambda _: self.cancel(request, slice(None)))  # clients may disconnect

    def cancel(self, request: QueuedRequest, examples: int | slice) -> None:
        """Return the places of drawn examples that will not be audited."""
        with self._lock:
            self._unpredicted -= int(np.count_nonzero(request.drawn[examples]))
            request.drawn[examples] = False

    def add(self, request: QueuedRequest, example: int, audit: PendingAudit) -> None:
        """Queue the audit of a drawn example that was predicted, unless it was cancelled."""
        with self._lock:
            if not request.drawn[example]:
                return
            request.drawn[example] = False
            self._unpredicted -= 1
            self.sampled += 1
            self._pending.append(audit)

    def take(self, max_tokens: int) -> list[PendingAudit]:
        """Remove and return the oldest examples, within `max_tokens` padded tokens; at least one if there are any."""
        taken: list[PendingAudit] = []
        longest = rows = 0
        while self._pending and len(taken) < MAX_EXAMPLES:
            lengths = self._pending[0].rows.lengths
            longest, rows = max(longest, int(lengths.max())), rows + len(lengths)
            if taken and longest * rows > max_tokens:
                break
            taken.append(self._pending.popleft())
        return taken


class TimeShare:
    """Limits the time of audits to a fraction of the total while requests wait."""

    def __init__(self, fraction: float):
        self.fraction = fraction
        self._seconds = 0.0  # earned and not spent yet; negative after a step that took longer

    @property
    def is_available(self) -> bool:
        """Whether an audit may run although requests wait."""
        return self._seconds > 0

    def earn(self, seconds: float) -> None:
        """Count the time that a batch of requests took."""
        self._seconds = min(self._seconds + self.fraction * seconds, self.fraction * SAVED_SECONDS)

    def spend(self, seconds: float) -> None:
        """Count the time that an audit took while requests waited."""
        self._seconds -= (1 - self.fraction) * seconds
