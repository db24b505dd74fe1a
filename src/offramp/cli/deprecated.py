"""Option names of earlier releases: they still work, and print the new name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

__all__ = ["RENAMED", "current_names"]

RENAMED = {  # command → old option → new option; renamed in 0.2
    "calibrate": {"--of": "--risk-type"},
    "benchmark": {"--peers": "--baselines"},
    "tune": {"--of": "--risk-type"},
    "train": {"--hard": "--label-weight"},
}


def current_names(words: Sequence[str]) -> list[str]:
    """Replace old option names in a command line; print a deprecation line for each."""
    if not words or words[0] not in RENAMED:
        return list(words)
    current: list[str] = []
    renamed = RENAMED[words[0]]
    for index, word in enumerate(words):
        if word == "--":  # only positional arguments follow
            return current + list(words[index:])
        name, equals, value = word.partition("=")
        if name in renamed:
            with suppress(OSError):
                print(f"offramp: {name} is deprecated; use {renamed[name]}.", file=sys.stderr, flush=True)
            word = renamed[name] + equals + value
        current.append(word)
    return current
