"""Labels as people write them: lists, lists as text, names between marks, ones and zeros, numbers with gaps."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from offramp.data.folder import parse_label
from offramp.errors import BadInput, BadValue

__all__ = ["as_lists", "is_missing", "looks_joined", "looks_like_lists", "numbers_with_gaps", "written"]

MARKS = (";", "|", ",")
MISSING = ("", "nan", "n/a", "#n/a", "null", "none")  # where all others are numbers
GAPS = 0.05  # of a regression's labels may be no number


def written(label: Any) -> str:
    """A single label as text; 1.0 is 1."""
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return "" if label is None else str(label).strip()


def is_missing(label: Any, labels: Sequence[str] | None) -> bool:
    """Whether a row has no label: nothing, no number in a regression (None), or NaN beside classes that are numbers."""
    text = written(label)
    if text == "" or labels is None:
        return parse_label(text, None) is None
    others = [name for name in labels if name.casefold() not in MISSING]
    return text.casefold() in MISSING and bool(others) and all(parse_label(name, None) is not None for name in others)


def numbers_with_gaps(labels: Sequence[Any]) -> bool:
    """Whether labels are numbers with fractions, but for a few that are none (NaN, n/a)."""
    texts = [text for label in labels if (text := written(label))]
    values = [parse_label(text, None) for text in texts]
    bad = [text for text, value in zip(texts, values, strict=True) if value is None]
    few = len(bad) <= GAPS * len(texts) or all(text.casefold() in MISSING for text in bad)
    return few and any(value is not None and value != int(value) for value in values)


def looks_like_lists(labels: Sequence[Any]) -> bool:
    """Whether rows have lists of labels, as such or written as text."""
    there = [label for label in labels if label is not None and written(label)]
    return bool(there) and any(isinstance(label, list | tuple) or _listed(label) is not None for label in there)


def looks_joined(labels: Sequence[Any]) -> str | None:
    """The mark that seems to join several labels in one cell: parts recur in other company; None where none does."""
    texts = [text for label in labels if (text := written(label))]
    for mark in MARKS:
        joined = [[part.strip() for part in text.split(mark)] for text in texts]
        several = {tuple(parts) for parts in joined if len(parts) > 1 and all(parts)}
        counts = Counter(part for parts in {tuple(parts) for parts in joined} for part in parts)
        if several and all(counts[part] > 1 for parts in several for part in parts):
            return mark
    return None


def as_lists(labels: Sequence[Any], names: Sequence[str] | None = None) -> list[list[Any]]:
    """Every row's labels as a list: a list, a list written as text, names between marks, or ones by position."""
    mark = next((mark for mark in MARKS if any(isinstance(one, str) and mark in one for one in labels)), ",")
    lists = [_list(label, mark) for label in labels]
    sizes = {len(row) for row in lists}
    flags = [flag for row in lists for flag in row]
    repeats = any(len(set(map(str, row))) < len(row) for row in lists)
    if len(sizes) == 1 and sizes != {0, 1} and repeats and all(str(flag) in ("0", "1", "0.0", "1.0") for flag in flags):
        width = sizes.pop()
        if names is not None and len(names) != width:
            raise BadInput(f"The rows' labels are {width} ones and zeros, but the classes are {', '.join(names)}.")
        called = list(names or map(str, range(width)))
        return [[name for name, flag in zip(called, row, strict=True) if float(flag) == 1] for row in lists]
    return lists


def _list(label: Any, mark: str) -> list[Any]:
    if isinstance(label, list | tuple):
        return list(label)
    if label is None:
        return []
    if not isinstance(label, str):
        raise BadValue(f"A row's labels are {label!r}; expected a list, or names between commas.")
    listed = _listed(label)
    return [part.strip() for part in label.split(mark) if part.strip()] if listed is None else listed


def _listed(label: Any) -> list[Any] | None:
    """A list that was written as text, JSON's or Python's."""
    text = label.strip() if isinstance(label, str) else ""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list) and all(isinstance(part, str | int | float) for part in found):
            return found
    return None
