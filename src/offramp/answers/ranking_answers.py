"""The documents of a query in order, and how two orders are compared at the top."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.answer import Answer, Answers, RowOutputs

__all__ = ["RankingAnswer", "RankingAnswers", "activate", "missing_fraction", "relevance", "sort_documents"]

Array = NDArray[Any]
ABSENT = -1  # fills the orders of queries with fewer documents


def relevance(logits: Any) -> Any:
    """Return the score that documents are ordered by, (…): the logit, or the log-odds of the second of two outputs."""
    return logits[..., 0] if logits.shape[-1] == 1 else logits[..., 1] - logits[..., 0]


def activate(values: Array, activation: str) -> Array:
    """Return scores as the model's folder wants them: the logits, or their sigmoid (for two outputs: the softmax)."""
    if activation == "identity":
        return np.asarray(values, dtype=np.float64)
    return np.asarray(1 / (1 + np.exp(-np.clip(np.asarray(values, dtype=np.float64), -700, 700))))


@dataclass(frozen=True, slots=True)
class RankingAnswer(Answer):
    """The documents of a query, best first; `score` is that of the first, `exit_layer` the deepest layer.

    Attributes:
        ranking: indices of the documents, best first.
        document_scores: their scores, in the same order.
        raw_scores: the same before the activation function.
        document_layers: the layers at which they exited.
        num_full: number of documents that have the full model's score. They come first; the others follow by their
            estimates.
    """

    ranking: list[int] = field(default_factory=list)
    document_scores: list[float] = field(default_factory=list)
    raw_scores: list[float] = field(default_factory=list)
    document_layers: list[int] = field(default_factory=list)
    num_full: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the ranking as a dict with the answer type's `fields`."""
        return {
            "ranking": self.ranking,
            "scores": [round(score, 6) for score in self.document_scores],
            "num_full": self.num_full,
            "exit_layer": self.exit_layer,
        }

    def results(self, top_k: int | None = None, documents: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return the first `top_k` documents as `CrossEncoder.rank` of sentence-transformers does.

        Documents whose score is an estimate of an early exit have the key `estimated`.
        """
        results: list[dict[str, Any]] = []
        for position, (index, score) in enumerate(zip(self.ranking, self.document_scores, strict=True)):
            result: dict[str, Any] = {"corpus_id": index, "score": score}
            result |= {} if documents is None else {"text": documents[index]}
            results.append(result | ({} if position < self.num_full else {"estimated": True}))
        return results[:top_k]


@dataclass(frozen=True)
class RankingAnswers(Answers):
    """Rankings in the order of the queries; the arrays hold one array per query."""

    orders: Array  # (queries,) of document indices, best first
    raw_scores: Array  # (queries,) of scores in that order, before the activation
    layers: Array  # (queries,) of exit layers in that order
    top_k: int  # documents that two rankings are compared by
    depth: int | None  # layers of the full model
    activation: str = "identity"

    def __iter__(self) -> Iterator[Answer]:
        for order, raw, layers, deepest in zip(
            self.orders, self.raw_scores, self.layers, self.layer.tolist(), strict=True
        ):
            num_full = len(layers) if self.depth is None else int((layers == self.depth).sum())
            scores, indices = activate(raw, self.activation).tolist(), order.tolist()
            documents = (indices, scores, raw.tolist(), layers.tolist(), num_full)
            yield RankingAnswer(None, scores[0], deepest, scores, (), *documents)

    @property
    def row_layers(self) -> NDArray[np.int64]:
        """Exit layers of all documents."""
        return np.concatenate([np.empty(0, np.int64), *self.layers])

    @property
    def values(self) -> Array:
        """Orders as an array: the number of documents to compare, then the documents, best first; −1: no more."""
        longest = max(map(len, self.orders), default=0)
        values = np.full((len(self.orders), 1 + longest), ABSENT, dtype=np.int64)
        values[:, 0] = self.top_k
        for row, order in zip(values, self.orders, strict=True):
            row[1 : 1 + len(order)] = order
        return values

    @property
    def score(self) -> NDArray[np.float64]:
        """Score of the best document of each query."""
        best = np.array([raw[0] for raw in self.raw_scores], dtype=np.float64)
        return activate(best, self.activation)

    def excerpt(self, index: int, example: Any, max_length: int) -> str | list[str]:
        """Return the query and its best document."""
        return [example[0][:max_length], example[1 + int(self.orders[index][0])][:max_length]]


def sort_documents(outputs: RowOutputs, group: Array, activation: str, top_k: int, depth: int | None) -> RankingAnswers:
    """Return the documents of each query: those that reached the deepest exit first, each part by its scores."""
    if not len(group):
        empty = np.empty(0, dtype=object)
        return RankingAnswers(np.empty(0, np.int64), empty, empty, empty, top_k, depth, activation)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    sizes = np.diff([*starts, len(group)])
    deepest = np.repeat(np.maximum.reduceat(outputs.exit, starts), sizes)
    values = relevance(np.asarray(outputs.logits))
    order = np.lexsort((-values, outputs.exit < deepest, group))  # stable: of equal scores the first document wins
    documents = order - np.repeat(starts, sizes)
    columns = (documents, values[order], np.asarray(outputs.layer)[order])
    orders, raw_scores, layers = (_split(column, starts) for column in columns)
    deepest_layers = np.maximum.reduceat(outputs.layer, starts)
    return RankingAnswers(deepest_layers, orders, raw_scores, layers, top_k, depth, activation)


def _split(values: Array, starts: Array) -> Array:
    parts = np.empty(len(starts), dtype=object)
    parts[:] = np.split(values, starts[1:])
    return parts


def missing_fraction(orders: Array, expected: Array) -> NDArray[np.float64]:
    """Return the fraction of the expected top documents that are not among the top ones, (queries,).

    Both arrays are `RankingAnswers.values`. If a query has fewer documents than are compared, none is missing.
    """
    fractions = np.zeros(len(expected))
    for top_k in np.unique(expected[:, 0]):
        rows = np.flatnonzero(expected[:, 0] == top_k)
        top, reference = orders[rows, 1 : 1 + top_k], expected[rows, 1 : 1 + top_k]
        real = reference != ABSENT
        kept = (reference[:, :, None] == top[:, None, :]).any(2) & real
        fractions[rows] = 1 - kept.sum(1) / np.maximum(real.sum(1), 1)
    return fractions
