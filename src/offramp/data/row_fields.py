"""Ids and texts that are written beside the predictions of their rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from offramp.data.entities import join_words
from offramp.data.rankings import RANKING_INPUTS
from offramp.data.reading import Text

__all__ = ["ID", "RowFields"]

ID = "id"  # the first column of the output


class RowFields:
    """Yields the texts of rows to the model, and returns the rows' other fields in the same order.

    Only the fields of texts that have been read and not yet predicted are in memory.
    """

    def __init__(self, rows: Iterable[tuple[Any, Text]], has_ids: bool, text_names: Sequence[str]):
        self.rows, self.has_ids, self.text_names = rows, has_ids, list(text_names)
        self.waiting: deque[dict[str, Any]] = deque()

    @property
    def names(self) -> list[str]:
        """The names of the fields."""
        return [*([ID] if self.has_ids else ()), *self.text_names]

    def texts(self) -> Iterator[Text]:
        """Yield the texts, and keep their fields for `take`."""
        for row_id, text in self.rows:
            fields: dict[str, Any] = {ID: row_id} if self.has_ids else {}
            if self.text_names:
                parts: Any = (text,) if isinstance(text, str) else text
                if tuple(self.text_names) == RANKING_INPUTS:
                    parts = (parts[0], list(parts[1:]))
                elif len(self.text_names) == 1:  # a list of words
                    parts = (join_words(parts),)
                fields |= dict.fromkeys(self.text_names) | dict(zip(self.text_names, parts, strict=False))
            self.waiting.append(fields)
            yield text

    def take(self, count: int) -> list[dict[str, Any]]:
        """Return the fields of the next `count` rows."""
        return [self.waiting.popleft() for _ in range(count)]
