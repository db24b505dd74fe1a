"""Errors for users: one line each that says what happened, where, and what to do.

OfframpError
├── UnknownName     a name that is not registered
├── BadValue        an invalid argument
├── BadInput        a file, row or text that cannot be read
├── BadModel        an invalid model folder or checkpoint
├── CannotWrite     an output that already exists or cannot be written
└── MissingExtra    an optional dependency that is not installed (`extras.py`)

The command line prints these without a traceback and exits with code 2. Any other exception is a bug in offramp.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["BadInput", "BadModel", "BadValue", "CannotWrite", "OfframpError", "UnknownName"]


class OfframpError(Exception):
    """Base class of the errors that users can fix."""


class BadValue(OfframpError, ValueError):
    """An invalid argument."""


class BadInput(OfframpError, ValueError):
    """A file, row or text that cannot be read."""


class BadModel(OfframpError, ValueError):
    """An invalid model folder or checkpoint."""


class CannotWrite(OfframpError, OSError):
    """An output that already exists or cannot be written."""


class UnknownName(OfframpError, LookupError):
    """A name that is not registered; the message suggests the closest one and lists all."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        self.arguments = (kind, str(name), sorted(known))
        kind, name, known = self.arguments
        close = difflib.get_close_matches(name, known, n=1)
        suggestion = f"Did you mean {close[0]!r}? " if close else ""
        super().__init__(f"Unknown {kind} {name!r}. {suggestion}Available: {', '.join(known)}.")

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, list[str]]]:
        return UnknownName, self.arguments
