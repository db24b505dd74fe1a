"""Option names of earlier releases. They still work, with one line that names the new option."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

__all__ = ["RENAMED", "current_names"]

RENAMED = {  # command → old option → new option; renamed in 0.2
    "calibrate": {"--of": "--risk-type"},
    "tune": {"--of": "--risk-type"},
    "train": {"--hard": "--label-weight"},
}


def current_names(words: Sequence[str]) -> list[str]:
    """The words of a command line with today's option names; prints one line per old name."""
    if not words or words[0] not in RENAMED:
        return list(words)
    current: list[str] = []
    renamed = RENAMED[words[0]]
    for place, word in enumerate(words):
        if word == "--":  # everything behind it is a value
            return current + list(words[place:])
        name, equals, value = word.partition("=")
        if name in renamed:
            with suppress(OSError):
                print(f"offramp: {name} is deprecated; use {renamed[name]}.", file=sys.stderr, flush=True)
            word = renamed[name] + equals + value
        current.append(word)
    return current
