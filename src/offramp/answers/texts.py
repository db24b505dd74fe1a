"""Encode texts and pairs of texts into rows of tokens, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offramp.core.batch import EncodedRows, Ragged
from offramp.data.reading import Text, Words
from offramp.errors import BadInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TextRowEncoder"]

CHUNK_SIZE = 128  # texts that are tokenized together
CHARS_PER_TOKEN = 40  # of a long text, only this many characters per token of the limit are tokenized;
MARGIN = 64  # tokens beyond the limit that the sides of a pair keep: a cut may change the tokens of its last word
MAX_TOKENS_PER_CHAR = 4  # of byte-level tokenizers
MAX_CHARS_PER_TOKEN = 400  # if they give too few tokens, this many are, and the rest is never read


@dataclass(frozen=True)
class TextRowEncoder:
    """Encodes texts with a tokenizer into at most `limit` tokens; `pairs`: whether texts are pairs (None: either)."""

    tokenizer: PreTrainedTokenizerBase
    limit: int
    pairs: bool | None = None

    def __call__(self, texts: Sequence[Any], seen: int) -> EncodedRows:
        """Return one row per text; `seen` is the number of texts before these."""
        is_single = [_is_single_text(text, seen + number) for number, text in enumerate(texts, 1)]
        if self.pairs in is_single:
            number = seen + is_single.index(bool(self.pairs)) + 1
            actual, expected = ("a single text", "pairs") if self.pairs else ("a pair", "single texts")
            raise BadInput(f"Text {number} is {actual}, but this model was trained on {expected}.")
        ids: list[list[int]] = [[]] * len(texts)
        types: list[list[int]] = [[]] * len(texts)
        num_truncated = 0
        for single in set(is_single):  # the tokenizer takes either single texts or pairs
            rows = [row for row, row_is_single in enumerate(is_single) if row_is_single is single]
            for start in range(0, len(rows), CHUNK_SIZE):  # limits the memory for overflowing tokens
                chunk = rows[start : start + CHUNK_SIZE]
                first = [texts[row] if single else texts[row][0] for row in chunk]
                second = None if single else [texts[row][1] for row in chunk]
                *encoded, chunk_truncated = self._encode(first, second, seen + chunk[0] + 1)
                num_truncated += chunk_truncated
                for row, *tokens in zip(chunk, *encoded, strict=True):
                    ids[row], types[row] = tokens
        has_types = "token_type_ids" in self.tokenizer.model_input_names
        type_rows = Ragged.from_lists(types) if has_types else None
        return EncodedRows(texts, Ragged.from_lists(ids), type_rows, np.arange(len(texts)), truncated=num_truncated)

    def _encode(
        self, first: list[Any], second: list[Any] | None, number: int
    ) -> tuple[list[list[int]], list[list[int]], int]:
        encoded, shortened = self._tokenize(first, second, number)
        # without special tokens, an empty text has no tokens: use one padding token
        ids: list[list[int]] = [row or [self.tokenizer.pad_token_id or 0] for row in encoded.ids]
        num_truncated = len(shortened | encoded.overflowing(self.limit))
        return ids, [row or [0] for row in encoded.types or ids], num_truncated

    def _tokenize(self, first: list[Any], second: list[Any] | None, number: int) -> tuple[_Tokens, set[int]]:
        """Return the tokens and the rows of very long texts, of which only the required part was tokenized."""
        for max_chars in (CHARS_PER_TOKEN * self.limit, MAX_CHARS_PER_TOKEN * self.limit):
            parts = [texts and [self._shorten(text, max_chars) for text in texts] for texts in (first, second)]
            if parts[1] is not None and self.tokenizer.is_fast:
                parts = self._cut_pairs(parts[0] or [], parts[1])
            try:
                encoded = self._run_tokenizer(parts[0] or [], parts[1])
            except (TypeError, UnicodeEncodeError) as err:
                raise BadInput(
                    f"Text {number} or one of the next texts cannot be encoded as UTF-8; "
                    "it may contain an unpaired surrogate."
                ) from err
            shortened = {
                row for texts in (first, second or ()) for row, text in enumerate(texts) if len(text) > max_chars
            }
            if shortened <= encoded.overflowing(self.limit):
                break
        return encoded, shortened

    def _run_tokenizer(self, first: list[str], second: list[str] | None) -> _Tokens:
        """Return the tokens of texts or pairs, truncated to the limit.

        `tokenizer(…)` spends about as much time around the tokenizers library as in it, so the library is called
        directly, with the same settings.
        """
        from transformers.tokenization_utils_base import TruncationStrategy
        from transformers.utils import PaddingStrategy

        tokenizer: Any = self.tokenizer
        if not _is_library_tokenizer(tokenizer):
            encoded = tokenizer(
                first, second, truncation=True, max_length=self.limit, padding=False, return_attention_mask=False
            )
            return _Tokens(encoded["input_ids"], encoded.get("token_type_ids"), encoded.encodings)
        tokenizer.set_truncation_and_padding(
            PaddingStrategy.DO_NOT_PAD, TruncationStrategy.LONGEST_FIRST, self.limit, 0, None, None
        )
        backend = tokenizer.backend_tokenizer
        if backend.encode_special_tokens != tokenizer.split_special_tokens:
            backend.encode_special_tokens = tokenizer.split_special_tokens
        encodings = backend.encode_batch_fast(first if second is None else list(zip(first, second, strict=True)))
        has_types = "token_type_ids" in tokenizer.model_input_names
        types = [encoding.type_ids for encoding in encodings] if has_types else None
        return _Tokens([encoding.ids for encoding in encodings], types, encodings)

    def _shorten(self, text: str, max_chars: int) -> str:
        """Return at most `max_chars` characters from the side that is not truncated, cut at a space if possible."""
        if len(text) <= max_chars:
            return text
        if self.tokenizer.truncation_side == "left":
            start = len(text) - max_chars
            return text[max(text.find(" ", start, len(text) - max_chars // 2), start) :]
        space = text.rfind(" ", max_chars // 2, max_chars)
        return text[: space if space > 0 else max_chars]

    def _cut_pairs(self, first: list[str], second: list[str]) -> list[list[str] | None]:
        """Return pairs without most of the tokens that are truncated in any case.

        Truncating a pair takes time and memory in proportion to the product of its lengths. Which side is the longer
        one stays the same, because it decides which side keeps an odd token.
        """
        sides, maximum = [list(first), list(second)], self.limit + 2 * MARGIN
        long = [
            (side, row)
            for side, texts in enumerate(sides)
            for row, text in enumerate(texts)
            if len(text) > self.limit // MAX_TOKENS_PER_CHAR
        ]
        if not long:
            return [*sides]
        options: Any = {"add_special_tokens": False, "padding": False, "return_attention_mask": False}
        encoded = self.tokenizer(
            [sides[side][row] for side, row in long], truncation=True, max_length=maximum, **options
        )
        encodings = dict(zip(long, encoded.encodings, strict=True))
        counts = {key: len(found) + sum(map(len, found.overflowing)) for key, found in encodings.items()}
        for (side, row), encoding in encodings.items():
            other = counts.get((1 - side, row), 0)
            is_longer = counts[side, row] > other or (counts[side, row] == other and side == 1)
            kept = maximum if is_longer else self.limit + MARGIN
            if counts[side, row] > kept and self.tokenizer.truncation_side == "left":
                sides[side][row] = sides[side][row][encoding.offsets[-kept][0] :]
            elif counts[side, row] > kept:
                sides[side][row] = sides[side][row][: encoding.offsets[kept - 1][1]]
        return [*sides]


@dataclass(frozen=True)
class _Tokens:
    """The tokens and token types of each text, and the tokenizers library's encodings, if it was used."""

    ids: list[list[int]]
    types: list[list[int]] | None
    encodings: Sequence[Any] | None

    def overflowing(self, limit: int) -> set[int]:
        """Return the rows with more tokens than the limit."""
        full = {index for index, row in enumerate(self.ids) if len(row) >= limit}
        if full and self.encodings is not None:
            full = {index for index in full if self.encodings[index].overflowing}
        return full


def _is_library_tokenizer(tokenizer: Any) -> bool:
    """Return whether a tokenizer only calls the tokenizers library, without code of its own around it."""
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    kind: Any = type(tokenizer)
    return issubclass(kind, PreTrainedTokenizerFast) and (
        kind.__call__ is PreTrainedTokenizerBase.__call__ and kind._encode_plus is PreTrainedTokenizerFast._encode_plus
    )


def _is_single_text(text: Text, number: int) -> bool:
    if isinstance(text, str):
        return True
    if isinstance(text, Words):
        raise BadInput(f"Text {number} is a list of words, {list(text)!r:.60}; join them with spaces.")
    if isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return False
    raise BadInput(f"Text {number} must be a string or a pair of strings, got {text!r:.60}.")
