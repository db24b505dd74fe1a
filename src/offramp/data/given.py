"""What a caller gives: a file, texts, or a table, with labels or without; one resolver of columns for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from offramp.data.reading import Source, Text, columns_of, format_of, listed, read_texts
from offramp.data.source import check_file, no_partner, text_columns
from offramp.errors import BadInput

__all__ = ["Given", "check", "given", "is_table"]


@dataclass(frozen=True)
class Given:
    """Texts, and labels where there are some: in a file, or in memory."""

    source: Source  # how messages call it, and which columns hold what
    texts: list[Text] | None = None  # in memory; None: in the file
    table: Any = None  # in memory, by column: a pandas DataFrame or a data set of Hugging Face's
    labels: Sequence[Any] | None = None

    @property
    def in_memory(self) -> bool:
        """Whether there is no file."""
        return self.texts is not None or self.table is not None

    @property
    def name(self) -> str:
        """How messages call it."""
        return self.source.name

    def columns(self) -> list[str] | None:
        """The names of its columns; None where rows are bare texts."""
        if self.table is not None:
            return _column_names(self.table)
        return None if self.texts is not None else columns_of(self.source)

    def read(self, inputs: Sequence[str] | None = None) -> Iterator[Text]:
        """The texts; `inputs` are the columns that a model was trained on."""
        source = replace(self.source, inputs=None if inputs is None else tuple(inputs))
        if self.texts is not None:
            return iter(self.texts)
        return read_texts(source) if self.table is None else _texts_of(self.table, source)


def given(
    texts: Any,
    labels: Sequence[Any] | None = None,
    *,
    text_column: str | None = None,
    pair_column: str | None = None,
    input_format: str | None = None,
    header: bool = True,
) -> Given:
    """A file's name, a list or an iterator of texts and pairs, a column, or a table."""
    if isinstance(texts, str | os.PathLike):
        file = os.fspath(texts)
        if labels is not None:
            raise BadInput("`labels=` go with texts in memory; a file has them in a column.")
        return Given(Source(file, input_format or format_of(file), text_column, pair_column, header))
    source = Source("texts", "memory", text_column, pair_column)
    golds = None if labels is None else labels.tolist() if hasattr(labels, "tolist") else list(labels)
    if _column_names(texts) is not None:
        if golds is not None and len(golds) != len(texts):
            raise BadInput(f"There are {len(texts):,} rows and {len(golds):,} labels.")
        return Given(source, table=texts, labels=golds)
    if text_column is not None or pair_column is not None:
        raise BadInput("`text_column=` and `pair_column=` are for files and tables; these are bare texts.")
    read = [_text(text, number) for number, text in enumerate(_iterated(texts), 1)]
    if golds is not None and len(golds) != len(read):
        raise BadInput(f"There are {len(read):,} texts and {len(golds):,} labels.")
    return Given(source, read, labels=golds)


def check(one: Given) -> None:
    """Refuse a file that is not there."""
    if not one.in_memory:
        check_file(one.source)


def _iterated(texts: Any) -> Iterable[Any]:
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping | bytes):
        raise BadInput(f"`texts` is {texts!r:.60}; it is a file, or a list or an iterator of texts.")
    return texts


def _text(text: Any, number: int) -> Text:
    if isinstance(text, str):
        return str(text)
    if isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return str(text[0]), str(text[1])
    raise BadInput(f"Text {number} is {text!r:.60}; a text is a string or a pair of strings.")


def _column_names(table: Any) -> list[str] | None:
    """Of a pandas DataFrame or a data set of Hugging Face's; None for anything else."""
    names = getattr(table, "column_names", None)
    if names is None and hasattr(table, "columns") and hasattr(table, "iloc"):
        names = list(table.columns)
    return None if not isinstance(names, list) else [str(name) for name in names]


def is_table(texts: Any) -> bool:
    """Whether it has columns, so that it is not itself a list of texts."""
    return _column_names(texts) is not None


def _column(table: Any, name: str) -> list[Any]:
    """A column by its name; a DataFrame's may be called by numbers."""
    keys = {str(key): key for key in getattr(table, "column_names", None) or table.columns}
    return list(table[keys[name]])


def _texts_of(table: Any, source: Source) -> Iterator[Text]:
    names = _column_names(table) or []
    text, pair = text_columns(source, names)
    if text is None or text not in names:
        raise BadInput(f"The table has the columns {listed(names)}; say with `text_column=` which one holds the text.")
    if pair is None and len(source.inputs or ()) == 2:
        raise BadInput(f"The table has the columns {listed(names)}; {no_partner(source)}")
    firsts = _column(table, text)
    rows: Iterable[Any] = firsts if pair is None else zip(firsts, _column(table, pair), strict=True)
    return (_text(row, number) for number, row in enumerate(rows, 1))
