"""One line of the message of a library's error; the name of its type if the message is empty."""

from __future__ import annotations

__all__ = ["first_line", "last_line"]


def first_line(err: BaseException) -> str:
    """Return the first line, without a full stop."""
    return (str(err).strip().splitlines() or [type(err).__name__])[0].rstrip(".")


def last_line(err: BaseException) -> str:
    """Return the last line, without a full stop: the cause, if the message contains a traceback."""
    return (str(err).strip().splitlines() or [type(err).__name__])[-1].strip(" .")
