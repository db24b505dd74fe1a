"""Texts and pairs of texts as rows of tokens, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offramp.core.batch import EncodedRows, Ragged
from offramp.data.reading import Text
from offramp.errors import BadInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TextEncoder"]

SLICE = 128  # texts that are tokenised together
ENOUGH = 40  # characters of a text per token of the limit; if they do not fill it,
LONGEST = 1_000_000  # characters are tokenised, and what is beyond them is never read


@dataclass(frozen=True)
class TextEncoder:
    """A tokenizer, the most tokens of a text, and whether texts are pairs (None: either)."""

    tokenizer: PreTrainedTokenizerBase
    limit: int
    pairs: bool | None = None

    def __call__(self, texts: Sequence[Any], seen: int) -> EncodedRows:
        """A row per text; `seen` texts came before these."""
        single = [_is_single(text, seen + number) for number, text in enumerate(texts, 1)]
        if self.pairs in single:
            number = seen + single.index(bool(self.pairs)) + 1
            ours, theirs = ("a single text", "pairs") if self.pairs else ("a pair", "single texts")
            raise BadInput(f"Text {number} is {ours}, and this model was trained on {theirs}.")
        ids: list[list[int]] = [[]] * len(texts)
        types: list[list[int]] = [[]] * len(texts)
        truncated = 0
        for kind in set(single):  # the tokenizer takes single texts or pairs, not both at once
            rows = [row for row, is_single in enumerate(single) if is_single is kind]
            for start in range(0, len(rows), SLICE):  # what is cut off a long text is kept as long as its slice
                some = rows[start : start + SLICE]
                first = [texts[row] if kind else texts[row][0] for row in some]
                second = None if kind else [texts[row][1] for row in some]
                *encoded, cut = self._encode(first, second, seen + some[0] + 1)
                truncated += cut
                for row, *tokens in zip(some, *encoded, strict=True):
                    ids[row], types[row] = tokens
        has_types = "token_type_ids" in self.tokenizer.model_input_names
        types_of = Ragged.of(types) if has_types else None
        return EncodedRows(texts, Ragged.of(ids), types_of, np.arange(len(texts)), truncated=truncated)

    def _encode(
        self, first: list[Any], second: list[Any] | None, number: int
    ) -> tuple[list[list[int]], list[list[int]], int]:
        encoded, cut = self._tokenised(first, second, number)
        # without special tokens an empty text has no token at all; one pad stands for it
        ids: list[list[int]] = [row or [self.tokenizer.pad_token_id or 0] for row in encoded["input_ids"]]
        truncated = len(cut | self._overflowing(encoded))
        return ids, [row or [0] for row in encoded.get("token_type_ids", ids)], truncated

    def _tokenised(self, first: list[Any], second: list[Any] | None, number: int) -> tuple[Any, set[int]]:
        """Tokens, and the texts that were cut before: of very long ones only as much is read as gives enough tokens."""
        for most in (ENOUGH * self.limit, LONGEST):
            parts = [texts and [self._start(text, most) for text in texts] for texts in (first, second)]
            try:
                encoded = self.tokenizer(
                    *parts, truncation=True, max_length=self.limit, padding=False, return_attention_mask=False
                )
            except (TypeError, UnicodeEncodeError) as err:
                raise BadInput(
                    f"A text from text {number} on cannot be encoded as UTF-8; is half a character pair in it?"
                ) from err
            long = {row for texts in (first, second or ()) for row, text in enumerate(texts) if len(text) > most}
            if long <= self._overflowing(encoded):
                break
        return encoded, long

    def _start(self, text: str, most: int) -> str:
        """The part of a text that may not be cut off; it ends between two words, where there are any."""
        if len(text) <= most:
            return text
        if self.tokenizer.truncation_side == "left":
            return text[max(text.find(" ", len(text) - most, len(text) - most // 2), len(text) - most) :]
        place = text.rfind(" ", most // 2, most)
        return text[: place if place > 0 else most]

    def _overflowing(self, encoded: Any) -> set[int]:
        """The rows that had more tokens than the limit."""
        full = {index for index, row in enumerate(encoded["input_ids"]) if len(row) >= self.limit}
        if full and encoded.encodings is not None:
            full = {index for index in full if encoded.encodings[index].overflowing}
        return full


def _is_single(text: Text, number: int) -> bool:
    if isinstance(text, str):
        return True
    if isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return False
    raise BadInput(f"Text {number} is {text!r:.60}; a text is a string or a pair of strings.")
