"""Standard output that may be closed or full, and signals that end a command: one line, no traceback, no leftovers."""

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

__all__ = ["Stopped", "let_go", "open_closed_ones", "printed", "say", "stopping"]

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class Closed(io.TextIOBase):
    """Standard output that whoever called us closed: what is written there is lost, and that is said."""

    def write(self, text: str) -> int:
        """Fail as the system would."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class Stopped(BaseException):
    """A signal asked the command to end."""

    def __init__(self, number: int):
        self.code = 128 + number


def say(text: str, written: Path | str | None = None) -> None:
    """Print to standard output, now; if that fails, say so, and what has been `written` all the same."""
    try:
        with writing("standard output"):
            print(text, flush=True)
    except CannotWrite as err:
        raise CannotWrite(f"{err} {written} is complete." if written is not None else str(err)) from err


def printed(code: int | str | None) -> int:
    """What a command ends with that has only printed: its code, or 2 where nobody could read it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        let_go()
    except OSError as err:
        let_go()
        print(f"offramp: Cannot write standard output: {err.strerror}.", file=sys.stderr)
        return 2
    return code if isinstance(code, int) else 0


def open_closed_ones() -> None:
    """Give closed standard streams something behind them, so that no file of ours takes their number.

    What we print is UTF-8, whatever the terminal's own encoding.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = Closed()
    elif isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 -- as long as we run


def let_go() -> None:
    """Forget what standard output could not take: at its own end Python would try once more, and complain."""
    with suppress(ValueError):  # closed by now
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def stopping() -> Iterator[None]:
    """Let Ctrl-C, a `kill` and a closed terminal end the work where it is, through everything that tidies up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Stopped(number)

    usual = {getattr(signal, name) for name in SIGNALS if hasattr(signal, name)}
    before = {one: signal.getsignal(one) for one in usual}
    # what is ignored (nohup, a job in the background) stays ignored
    heard = [one for one, handler in before.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]
    for one in heard:
        signal.signal(one, stop)
    try:
        yield
    finally:
        for one in heard:
            signal.signal(one, before[one])
