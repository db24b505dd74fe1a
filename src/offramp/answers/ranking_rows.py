"""Encode a query and its documents into rows: one per document, as a pair of texts or in the model's own template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from offramp.answers.texts import TextRowEncoder
from offramp.core.batch import EncodedRows
from offramp.data.rankings import to_ranking

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["QUERY", "RankingEncoder"]

QUERY, DOCUMENT = "{query}", "{document}"  # in a template


@dataclass(frozen=True)
class RankingEncoder:
    """Encodes rankings into at most `limit` tokens per row; longer pairs are truncated as the tokenizer does."""

    tokenizer: PreTrainedTokenizerBase
    limit: int
    template: str | None = None

    def __call__(self, examples: Sequence[Any], seen: int) -> EncodedRows:
        """Return one row per document; `seen` is the number of rankings before these."""
        rankings = [to_ranking(example, f"Row {seen + number}") for number, example in enumerate(examples, 1)]
        pairs: list[Any] = [(query, document) for query, *documents in rankings for document in documents]
        if self.template is not None:
            pairs = [self._fill(query, document) for query, document in pairs]
        rows = TextRowEncoder(self.tokenizer, self.limit, self.template is None)(pairs, 0)
        group = np.repeat(np.arange(len(rankings)), [len(ranking) - 1 for ranking in rankings])
        full = np.unique(group[rows.lengths >= self.limit])
        return replace(rows, examples=rankings, group=group, truncated=min(rows.truncated, len(full)))

    def _fill(self, query: str, document: str) -> str:
        assert self.template is not None
        before, after = self.template.split(QUERY, 1)
        return before.replace(DOCUMENT, document) + query + after.replace(DOCUMENT, document)
