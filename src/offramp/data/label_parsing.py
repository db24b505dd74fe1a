"""Parse labels: lists, lists written as text, separated names, ones and zeros, numbers with missing values."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from offramp.data.task_files import parse_label
from offramp.errors import BadInput, BadValue

__all__ = ["find_separator", "has_label_lists", "is_missing", "is_regression", "label_lists", "label_text"]

SEPARATORS = (";", "|", ",")
MISSING = ("", "nan", "n/a", "#n/a", "null", "none")  # if all other labels are numbers
MAX_INVALID_FRACTION = 0.05  # of regression labels that are not numbers


def label_text(label: Any) -> str:
    """Return a single label as text; 1.0 becomes "1"."""
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return "" if label is None else str(label).strip()


def is_missing(label: Any, labels: Sequence[str] | None) -> bool:
    """Whether a row has no label: empty, not a number (regression, `labels` is None), or NaN among numeric classes."""
    text = label_text(label)
    if text == "" or labels is None:
        return parse_label(text, None) is None
    others = [name for name in labels if name.casefold() not in MISSING]
    return text.casefold() in MISSING and bool(others) and all(parse_label(name, None) is not None for name in others)


def is_regression(labels: Sequence[Any]) -> bool:
    """Whether the labels are numbers with fractions, except for a few missing ones (NaN, n/a)."""
    texts = [text for label in labels if (text := label_text(label))]
    values = [parse_label(text, None) for text in texts]
    invalid = [text for text, value in zip(texts, values, strict=True) if value is None]
    is_numeric = len(invalid) <= MAX_INVALID_FRACTION * len(texts) or all(
        text.casefold() in MISSING for text in invalid
    )
    return is_numeric and any(value is not None and value != int(value) for value in values)


def has_label_lists(labels: Sequence[Any]) -> bool:
    """Whether rows have lists of labels, as lists or written as text."""
    present = [label for label in labels if label is not None and label_text(label)]
    return any(isinstance(label, list | tuple) or _parse_list(label) is not None for label in present)


def find_separator(labels: Sequence[Any]) -> str | None:
    """Return the separator that seems to join several labels in one cell; None if there is none.

    Every joined part must also occur on its own or in another combination.
    """
    texts = [text for label in labels if (text := label_text(label))]
    for separator in SEPARATORS:
        split_texts = [[part.strip() for part in text.split(separator)] for text in texts]
        combinations = {tuple(parts) for parts in split_texts if len(parts) > 1 and all(parts)}
        counts = Counter(part for parts in {tuple(parts) for parts in split_texts} for part in parts)
        if combinations and all(counts[part] > 1 for parts in combinations for part in parts):
            return separator
    return None


def label_lists(labels: Sequence[Any], names: Sequence[str] | None = None) -> list[list[Any]]:
    """Return each row's labels as a list, from lists, lists written as text, separated names, or ones and zeros."""
    separators = (mark for mark in SEPARATORS if any(isinstance(label, str) and mark in label for label in labels))
    separator = next(separators, ",")
    lists = [_to_list(label, separator) for label in labels]
    sizes = {len(row) for row in lists}
    flags = [flag for row in lists for flag in row]
    repeats = any(len(set(map(str, row))) < len(row) for row in lists)
    if len(sizes) == 1 and sizes != {0, 1} and repeats and all(str(flag) in ("0", "1", "0.0", "1.0") for flag in flags):
        width = sizes.pop()
        if names is not None and len(names) != width:
            raise BadInput(f"The labels are lists of {width} ones and zeros, but the classes are {', '.join(names)}.")
        classes = list(names or map(str, range(width)))
        return [[name for name, flag in zip(classes, row, strict=True) if float(flag) == 1] for row in lists]
    return lists


def _to_list(label: Any, separator: str) -> list[Any]:
    if isinstance(label, list | tuple):
        return list(label)
    if label is None:
        return []
    if not isinstance(label, str):
        raise BadValue(f"The labels of a row must be a list or comma-separated names, got {label!r}.")
    parsed = _parse_list(label)
    return [part.strip() for part in label.split(separator) if part.strip()] if parsed is None else parsed


def _parse_list(label: Any) -> list[Any] | None:
    """Parse a list written as text, in JSON or Python syntax; None if it is not one."""
    text = label.strip() if isinstance(label, str) else ""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            parsed = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(parsed, list) and all(isinstance(part, str | int | float) for part in parsed):
            return parsed
    return None
