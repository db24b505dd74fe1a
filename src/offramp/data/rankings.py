"""Rankings as examples: a query with its candidate documents.

Inside offramp a ranking is a flat tuple: the query, then the documents. Users write `{"query", "documents"}`, or a
query and a list of documents.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from offramp.errors import BadInput

__all__ = [
    "DOCUMENT_COLUMNS",
    "RANKING_INPUTS",
    "are_rankings",
    "is_ranking",
    "join_pairs",
    "join_pairs_with_ids",
    "to_ranking",
]

RANKING_INPUTS = ("query", "documents")
DOCUMENT_COLUMNS = ("document", "passage")  # of tables with a row per query and document


def are_rankings(columns: Sequence[str] | None) -> bool:
    """Whether a file or table with these columns contains rankings."""
    names = columns or ()
    return "query" in names and any(name in names for name in (RANKING_INPUTS[1], *DOCUMENT_COLUMNS))


def join_pairs(pairs: Iterable[Any]) -> Iterator[Any]:
    """Yield rankings from the rows of a table, a query and a document each; rows of a query follow each other."""
    for query, rows in itertools.groupby(pairs, key=lambda pair: pair[0]):
        yield (query, *(document for row in rows for document in row[1:]))


def join_pairs_with_ids(rows: Iterable[tuple[Any, Any]], name: str, required: bool) -> Iterator[tuple[Any, Any]]:
    """Yield the id and the ranking of each query; its rows, an id and a pair each, must have the same id.

    Unless `required`, the id of a query whose rows have different ids is None.
    """
    for query, pairs in itertools.groupby(rows, key=lambda row: row[1][0]):
        entries = list(pairs)
        ids = list(dict.fromkeys(row_id for row_id, _ in entries))
        if len(ids) > 1 and required:
            raise BadInput(
                f"{name}: the rows of the query {query!r:.60} have different values in the column of ids or groups: "
                f"{ids[0]!r:.40} and {ids[1]!r:.40}."
            )
        documents = (document for _, pair in entries for document in pair[1:])
        yield (ids[0] if len(ids) == 1 else None), (query, *documents)


def is_ranking(example: Any) -> bool:
    """Whether an example in memory is written as a ranking: a dict, or a query with a list of documents."""
    if isinstance(example, Mapping):
        return set(RANKING_INPUTS) <= set(example)
    return isinstance(example, tuple | list) and len(example) == 2 and _is_list(example[1])


def to_ranking(example: Any, place: str) -> tuple[str, ...]:
    """Return a ranking as a flat tuple; raise with its `place`, such as "Row 3", if it is not valid."""
    if isinstance(example, Mapping):
        if missing := [name for name in RANKING_INPUTS if name not in example]:
            raise BadInput(f"{place}: `{missing[0]}` is missing; a ranking needs `query` and `documents`.")
        query, documents = (example[name] for name in RANKING_INPUTS)
    elif is_ranking(example):
        query, documents = example
    elif isinstance(example, tuple | list) and len(example) > 1:
        query, documents = example[0], list(example[1:])
    else:
        raise BadInput(f"{place}: expected a query with documents, got {example!r:.60}.")
    if not isinstance(query, str):
        raise BadInput(f"{place}: the query must be a string, got {query!r:.60}.")
    if not _is_list(documents):
        raise BadInput(f"{place}: the documents must be a list of strings, got {documents!r:.60}.")
    for number, document in enumerate(documents, 1):
        if not isinstance(document, str):
            raise BadInput(f"{place}: document {number} must be a string, got {document!r:.60}.")
    if not len(documents):
        raise BadInput(f"{place}: the query {query!r:.60} has no documents.")
    return query, *map(str, documents)


def _is_list(value: Any) -> bool:
    if isinstance(value, str | bytes | Mapping):
        return False
    return isinstance(value, Sequence) or hasattr(value, "tolist")
