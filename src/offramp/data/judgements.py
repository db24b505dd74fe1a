"""Rankings in files, with or without judgements: a grade per document."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from offramp.data.reading import (
    Source,
    extract_text,
    is_table_of_pairs,
    read_column_names,
    read_records,
    read_texts,
)
from offramp.data.task import Rows
from offramp.errors import BadInput, UnknownName

__all__ = ["JUDGEMENTS", "labelled_rankings"]

JUDGEMENTS = ("relevance", "relevant", "labels", "label")  # names of the field with the grades


def labelled_rankings(source: Source, column: str | None = None) -> Rows:
    """Return the rankings of a file with the grades in `column`; None: in the first field of a known name, if any."""
    names = read_column_names(source) or []
    if column is not None and column not in names:
        raise BadInput(f"{source.name}: {UnknownName('column', column, names)}")
    column = column or next((name for name in JUDGEMENTS if name in names), None)
    if column is None:
        return Rows(list(read_texts(source)), None)
    if is_table_of_pairs(source):
        return _from_pairs(source, column)
    texts, grades = [], []
    for line, row in read_records(source):
        text = extract_text(source, line, row)
        texts.append(text)
        values = row.get(column)
        if not isinstance(values, list) or len(values) != len(text) - 1:
            raise source.error_at(line, f"{column!r} must have a grade for each of the {len(text) - 1} documents.")
        grades.append([_grade(source, line, value) for value in values])
    if not texts:
        raise BadInput(f"{source.name} contains no queries.")
    return Rows(texts, grades)


def _from_pairs(source: Source, column: str) -> Rows:
    """Return the rankings of a table with a row per query and document; rows of a query follow each other."""
    records = ((line, extract_text(source, line, row), row) for line, row in read_records(source, used=[column]))
    texts: list[Any] = []
    grades: list[list[float]] = []
    for query, rows in itertools.groupby(records, key=lambda record: record[1][0]):
        pairs = [(line, text[1], row) for line, text, row in rows]
        texts.append((query, *(document for _, document, _ in pairs)))
        grades.append([_grade(source, line, _cell(row, column)) for line, _, row in pairs])
    if not texts:
        raise BadInput(f"{source.name} contains no queries.")
    return Rows(texts, grades)


def _cell(row: Mapping[str, Any], column: str) -> Any:
    try:
        return float(row[column])
    except (TypeError, ValueError):
        return row[column]


def _grade(source: Source, line: int, value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise source.error_at(line, f"a grade must be a number of at least 0, got {value!r:.40}.")
    return float(value)
