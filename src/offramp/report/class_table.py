"""The table of a guarantee per class, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offramp.model.class_table import HEAD, class_table_rows
from offramp.report.tables import format_table

__all__ = ["class_table"]


def class_table(classes: Sequence[Mapping[str, Any]], limits: Sequence[Mapping[str, Any]]) -> str:
    """Return the table; empty without classes and limits."""
    return format_table(HEAD, class_table_rows(classes, limits)) if classes or limits else ""
