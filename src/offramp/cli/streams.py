"""Standard output that may be closed or full, and signals: one line of error, no traceback, no partial files."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from offramp.errors import CannotWrite
from offramp.files.writing import writing

__all__ = ["Stopped", "discard_output", "echo", "flush_output", "open_standard_streams", "signals_raise"]

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class ClosedOutput(io.TextIOBase):
    """Standard output that the caller closed: every write fails."""

    def write(self, text: str) -> int:
        """Raise the error that the operating system would raise."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class Stopped(BaseException):
    """A signal stopped the command."""

    def __init__(self, number: int):
        self.code = 128 + number


def echo(text: str, written: Path | str | None = None) -> None:
    """Print to standard output and flush; if that fails, the error adds that `written` is complete."""
    try:
        with writing("standard output"):
            print(text, flush=True)
    except CannotWrite as err:
        raise CannotWrite(f"{err} {written} is complete." if written is not None else str(err)) from err


def flush_output(code: int | str | None) -> int:
    """Flush standard output; return `code`, or 2 if the output could not be written."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except OSError as err:
        discard_output()
        print(f"offramp: Cannot write standard output: {err.strerror}.", file=sys.stderr)
        return 2
    return code if isinstance(code, int) else 0


def open_standard_streams() -> None:
    """Open closed standard streams on the null device, so that no other file gets their descriptors.

    Standard output is set to UTF-8, whatever the encoding of the terminal.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
    if sys.stdout is None:
        sys.stdout = ClosedOutput()
    elif isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 -- open until the process ends


def discard_output() -> None:
    """Discard output that cannot be written; otherwise Python retries at exit and prints an error."""
    with suppress(ValueError):  # already closed
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raise `Stopped` on Ctrl-C, `kill` and a closed terminal, so that cleanup code runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Stopped(number)

    numbers = {getattr(signal, name) for name in SIGNALS if hasattr(signal, name)}
    before = {number: signal.getsignal(number) for number in numbers}
    # ignored signals (nohup, background jobs) stay ignored
    handled = [number for number, handler in before.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])
