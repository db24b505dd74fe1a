"""Rows of JSON lines, or of a file that is one JSON array."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from offramp.errors import BadInput

__all__ = ["json_rows"]

Lines = Iterator[tuple[int, str]]
ErrorAt = Callable[[int, str], BadInput]
DECODER = json.JSONDecoder()
WHITE_SPACE = re.compile(r"\s*")


def json_rows(lines: Lines, error_at: ErrorAt) -> Iterator[tuple[int, Any]]:
    """Yield the rows with the line that each starts on; `error_at` returns the error for a line.

    A file whose first line opens an array that does not end on the same line, or that has no other line, is an array.
    """
    lines = ((number, line) for number, line in lines if line.strip())
    first = next(lines, None)
    if first is None:
        return
    number, line = first
    if not line.lstrip().startswith("["):
        yield number, _parse(line, number, error_at)
        yield from ((number, _parse(line, number, error_at)) for number, line in lines)
        return
    second = next(lines, None)
    if second is not None and _is_complete(line):
        yield number, _parse(line, number, error_at)
        yield second[0], _parse(second[1], second[0], error_at)
        yield from ((number, _parse(line, number, error_at)) for number, line in lines)
        return
    yield from _ArrayReader(_chain(first, second, lines), error_at)


def _chain(first: tuple[int, str], second: tuple[int, str] | None, lines: Lines) -> Lines:
    yield first
    if second is not None:
        yield second
    yield from lines


def _is_complete(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _parse(line: str, number: int, error_at: ErrorAt) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as err:
        raise error_at(number, f"invalid JSON ({err.msg} at column {err.colno}).") from err
    except (ValueError, RecursionError) as err:  # numbers with thousands of digits, deep nesting
        raise error_at(number, f"unreadable JSON ({err}).") from err


class _ArrayReader:
    """Yields the elements of a JSON array that may span many lines; one element at a time is in memory."""

    def __init__(self, lines: Lines, error_at: ErrorAt):
        self.lines, self.error_at = lines, error_at
        self.line, self.text = next(lines)
        self.position = self.text.index("[") + 1

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        is_first = True
        while (character := self._next_character()) != "]":
            if not is_first:
                if character != ",":
                    raise self._error("expected a comma or ] after an element")
                self.position += 1
                self._next_character()
            is_first = False
            yield self._element()
        self.position += 1
        if self.text[self.position :].strip() or next(self.lines, None) is not None:
            raise self._error("there is text after the end of the array")

    def _error(self, message: str) -> BadInput:
        return self.error_at(self.line, f"invalid JSON array ({message}).")

    def _read_lines(self, count: int = 1) -> bool:
        """Append further lines to the text; return whether there were any."""
        lines = list(itertools.islice(self.lines, count))
        if not lines:
            return False
        self.text = self.text[self.position :] + "".join(text for _, text in lines)
        self.line, self.position = lines[-1][0], 0
        return True

    def _next_character(self) -> str:
        """Return the next character that is not white space, reading further lines."""
        while True:
            self.position = WHITE_SPACE.match(self.text, self.position).end()  # type: ignore[union-attr]
            if self.position < len(self.text):
                return self.text[self.position]
            if not self._read_lines():
                raise self._error("it does not end with ]")

    def _element(self) -> tuple[int, Any]:
        line, count = self.line, 1
        while True:
            try:
                value, self.position = DECODER.raw_decode(self.text, self.position)
            except json.JSONDecodeError as err:
                is_at_end = err.pos >= len(self.text.rstrip()) - 1  # the element may continue on the next line
                if not is_at_end or not self._read_lines(count):
                    raise self.error_at(line, f"invalid JSON ({err.msg}).") from err
                count *= 2  # a long element is not parsed again after each of its lines
            except (ValueError, RecursionError) as err:
                raise self.error_at(line, f"unreadable JSON ({err}).") from err
            else:
                return line, value
