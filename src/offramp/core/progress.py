"""Progress of long work: a bar on a terminal, otherwise a log line after fifteen seconds without output."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Any, TypeVar

from tqdm import tqdm

__all__ = ["LOGGER", "Progress", "describe_seconds", "last_output", "track"]

Item = TypeVar("Item")

LOGGER = "offramp.progress"  # the command line prints its records on standard error
INTERVAL = 15.0  # seconds without a line
MIN_ELAPSED = 1.0  # seconds before a pass is logged
DELAY = 2.0  # seconds before a bar appears

logger = logging.getLogger(LOGGER)


class LastOutput:
    """When a line was last printed: passes that are short but many do not add up to a long silence."""

    seconds = time.monotonic()


last_output = LastOutput()


class Progress:
    """Shows how much of `total` is done and estimates the time left; use it in a `with` statement.

    `show` is None to show it if the work takes long, True to show a bar at once, False to show nothing. `initial` is
    what was done before.
    """

    def __init__(self, title: str, total: int | None, unit: str = "", show: bool | None = None, initial: int = 0):
        self.title, self.total, self.unit, self.done, self.initial = title, total, unit, initial, initial
        self.is_logged = show is None and not _has_terminal()
        self.start = time.monotonic()
        self.bar: tqdm[Any] | None = None
        if show is not False and not self.is_logged:  # making a disabled bar takes as long as encoding a short text
            self.bar = tqdm(
                total=total, initial=initial, desc=title, unit=f" {unit}", delay=0 if show else DELAY, leave=False
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()

    def show(self, **values: str) -> None:
        """Show values next to the bar."""
        if self.bar is not None:
            self.bar.set_postfix(values)

    def update(self, count: int = 1) -> None:
        """Add finished work."""
        self.done += count
        if self.bar is not None:
            self.bar.update(count)
        now = time.monotonic()
        silence, elapsed = now - last_output.seconds, now - self.start
        if self.is_logged and silence >= INTERVAL and elapsed >= MIN_ELAPSED and self.done != self.total:
            last_output.seconds = now
            logger.info("%s: %s", self.title, self._describe(elapsed))

    def reach(self, fraction: float) -> None:
        """Set the finished fraction of the total."""
        self.update(int(fraction * (self.total or 0)) - self.done)

    def _describe(self, elapsed: float) -> str:
        if not self.total:
            return f"{self.done:,} {self.unit}, {describe_seconds(elapsed)} so far"
        left = elapsed * (self.total - self.done) / max(1, self.done - self.initial)
        rest = f"about {describe_seconds(left)} left" if left >= 1 else "almost done"
        return f"{100 * self.done / self.total:.0f} %, {rest}"


def track(items: Collection[Item], title: str, unit: str = "passes") -> Iterator[Item]:
    """Yield the items and show how many are done."""
    with Progress(title, len(items), unit) as progress:
        for item in items:
            yield item
            progress.update()


def describe_seconds(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _has_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
