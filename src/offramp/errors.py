"""What a user can mend: one family, one line each, saying what happened, where, and what to do.

OfframpError
├── UnknownName     a name that is in no table of ours
├── BadValue        a number or an option that cannot be right
├── BadInput        a file, row or text that cannot be read
├── BadModel        a folder or checkpoint that is not what it should be
├── CannotWrite     an output that exists already, a full disk
└── MissingExtra    a part of the package whose libraries are not installed (`extras.py`)

The command line prints these without a traceback and ends with code 2. Everything else is our bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["BadInput", "BadModel", "BadValue", "CannotWrite", "OfframpError", "UnknownName"]


class OfframpError(Exception):
    """A mistake that its reader can mend."""


class BadValue(OfframpError, ValueError):
    """A number or an option that cannot be right."""


class BadInput(OfframpError, ValueError):
    """A file, row or text that cannot be read."""


class BadModel(OfframpError, ValueError):
    """A folder or checkpoint that is not what it should be."""


class CannotWrite(OfframpError, OSError):
    """An output that exists already or cannot be written."""


class UnknownName(OfframpError, LookupError):
    """A name that is in no table of ours."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        self.asked = (kind, str(name), sorted(known))
        kind, name, known = self.asked
        close = difflib.get_close_matches(name, known, n=1)
        guess = f"Did you mean {close[0]!r}? " if close else ""
        super().__init__(f"No {kind} is called {name!r}. {guess}Known: {', '.join(known)}.")

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, list[str]]]:
        return UnknownName, self.asked
