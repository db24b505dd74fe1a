"""Encode texts or lists of words into windows whose tokens are marked by word (see `token_summary.py`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.span_windows import best_context
from offramp.answers.token_summary import POSITIONS
from offramp.core.batch import EncodedRows, Ints, Ragged
from offramp.data.entities import join_words, word_spans
from offramp.errors import BadInput, BadValue

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["AGGREGATIONS", "TokenEncoder", "text_of"]

AGGREGATIONS = {  # of `pipeline("token-classification", aggregation_strategy=…)`
    "none": "the label of every token",
    "simple": "adjacent tokens with the same label",
    "first": "words by their first token",
    "average": "words by the mean over their tokens",
    "max": "words by their most certain token",
}
CHUNK_SIZE = 1024  # texts that are tokenized together
OVERLAP = 4  # consecutive windows of a long text share at least one in this many tokens


def text_of(example: Any) -> str:
    """Return the text of an example, to which offsets refer."""
    return example if isinstance(example, str) else join_words(example)


class TokenEncoder:
    """Encodes texts, or lists of words, into windows of at most `limit` tokens.

    Words are the given words; of a text those of transformers' pipeline: tokens that start with the tokenizer's prefix
    for continuations (such as ##) belong to the word before; without such a prefix, tokens without a space between.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, limit: int, aggregation: str = "first"):
        if not tokenizer.is_fast:
            raise BadValue("Token classification needs a fast tokenizer: slow ones do not return token offsets.")
        self.tokenizer, self.aggregation = tokenizer, aggregation
        self.limit = min(limit, POSITIONS)
        encoded = tokenizer("a", return_token_type_ids=True)
        special = np.array([index is None for index in encoded.sequence_ids(0)])
        first = int(special.argmin())
        last = len(special) - int(special[::-1].argmin())
        ids, types = encoded["input_ids"], encoded["token_type_ids"]
        self.prefix, self.suffix = np.array(ids[:first], np.int32), np.array(ids[last:], np.int32)
        self.type_id = types[first]
        self.has_types = "token_type_ids" in tokenizer.model_input_names
        self.room = self.limit - len(self.prefix) - len(self.suffix)
        if self.room < 1:
            raise BadValue(f"The maximum length is {limit} tokens, which leaves none for the text.")
        self.token_lengths = _token_lengths(tokenizer)

    def __call__(self, examples: Sequence[Any], seen: int = 0) -> EncodedRows:
        """Return the windows of the examples; `seen` is the number of examples before these."""
        parts = [
            self._encode(examples[start : start + CHUNK_SIZE], seen + start)
            for start in range(0, max(1, len(examples)), CHUNK_SIZE)
        ]
        return EncodedRows.concat(parts)

    def _encode(self, examples: Sequence[Any], seen: int) -> EncodedRows:
        texts = [_check_example(example, number) for number, example in enumerate(examples, seen + 1)]
        ids, begins, ends, counts = self._tokenize(texts)
        first = self._first_tokens(examples, texts, ids, begins, ends, counts)
        starts = np.cumsum(counts) - counts
        windows = [
            (text, *window)
            for text, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True))
            for window in self._windows(start, count)
        ]
        group, begin, end = (np.array(column, np.int64) for column in zip(*windows, strict=True)) if windows else _NONE
        lengths = end - begin + len(self.prefix) + len(self.suffix)
        row_starts = np.cumsum(lengths) - lengths
        used = np.repeat(begin - (np.cumsum(end - begin) - (end - begin)), end - begin) + np.arange(
            int((end - begin).sum())
        )
        target = np.repeat(row_starts + len(self.prefix) - begin, end - begin) + used
        table = np.zeros((4, int(lengths.sum())), np.int32)  # ids, marks, begins, ends
        for offset, token in enumerate(self.prefix):
            table[0, row_starts + offset] = token
        for offset, token in enumerate(self.suffix):
            table[0, row_starts + lengths - len(self.suffix) + offset] = token
        table[0, target], table[2, target], table[3, target] = ids[used], begins[used], ends[used]
        row_of_token = np.repeat(np.arange(len(begin)), end - begin)
        position = first[used] - begin[row_of_token]
        marks = np.where(position >= 0, position + len(self.prefix) + 1, 0)
        marks[first[used] < 0] = 0
        if len(windows) > len(texts):
            marks[~self._has_most_context(group, begin, end, first, used, row_of_token)] = 0
        table[1, target] = -marks if self.aggregation == "max" else marks
        tokens, word_marks, firsts, stops = (Ragged(row, lengths) for row in table)
        types = Ragged(np.full(table.shape[1], self.type_id, np.int32), lengths) if self.has_types else None
        return EncodedRows(examples, tokens, types, group, word_marks, firsts, stops)

    def _tokenize(self, texts: list[str]) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the ids of all tokens, their first characters and ends, and the number of tokens of each text."""
        if not texts:
            return (np.empty(0, np.int64),) * 4
        try:
            encoded = self.tokenizer(
                texts, add_special_tokens=False, return_offsets_mapping=True, return_attention_mask=False, verbose=False
            )
        except (TypeError, UnicodeEncodeError) as err:
            raise BadInput("A text cannot be encoded as UTF-8; it may contain an unpaired surrogate.") from err
        counts = np.fromiter(map(len, encoded["input_ids"]), np.int64, len(texts))
        total = int(counts.sum())
        chain = itertools.chain.from_iterable
        ids = np.fromiter(chain(encoded["input_ids"]), np.int64, total)
        offsets = np.fromiter(chain(chain(encoded["offset_mapping"])), np.int64, 2 * total).reshape(-1, 2)
        return ids, offsets[:, 0].copy(), offsets[:, 1].copy(), counts

    def _first_tokens(
        self, examples: Sequence[Any], texts: list[str], ids: Ints, begins: Ints, ends: Ints, counts: Ints
    ) -> Ints:
        """Return for every token the first token of its word, or −1 if it is not used; words' offsets are joined."""
        tokens = np.arange(len(ids))
        if self.aggregation in ("none", "simple") or not len(ids):
            return tokens
        text_of_token = np.repeat(np.arange(len(texts)), counts)
        word = np.cumsum(~self._continues(texts, ids, begins, ends, text_of_token))
        stops = np.cumsum(counts)
        for text, example in enumerate(examples):
            if not isinstance(example, str) and counts[text]:
                part = slice(int(stops[text] - counts[text]), int(stops[text]))
                word[part] = np.searchsorted([start for start, _ in word_spans(example)], begins[part], "right")
        is_first = np.concatenate([[True], (word[1:] != word[:-1]) | (text_of_token[1:] != text_of_token[:-1])])
        first = np.maximum.accumulate(np.where(is_first, tokens, 0))
        last = np.append(np.flatnonzero(is_first)[1:], len(ids)) - 1
        ends[is_first] = ends[last]
        return np.where(is_first, tokens, -1) if self.aggregation == "first" else first

    def _continues(self, texts: list[str], ids: Ints, begins: Ints, ends: Ints, text: Ints) -> NDArray[np.bool_]:
        """Return which tokens continue a word, as transformers' pipeline decides it."""
        if self.token_lengths is not None:
            continues = self.token_lengths[ids] != ends - begins
        else:
            spaces = np.frombuffer("\0".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32) == ord(" ")
            offsets = np.cumsum([0, *(len(value) + 1 for value in texts)])[text] + begins
            spaces = np.append(spaces, False)
            continues = (begins > 0) & ~spaces[offsets] & ~spaces[np.maximum(offsets - 1, 0)]
        return np.asarray(continues & (ids != self.tokenizer.unk_token_id))

    def _windows(self, start: int, count: int) -> list[tuple[int, int]]:
        """Return the first token and the end of each window of a text."""
        if count <= self.room:
            return [(start, start + count)]
        stride = max(1, self.room - self.room // OVERLAP)
        more = -(-(count - self.room) // stride)
        begins = [min(index * stride, count - self.room) for index in range(more + 1)]
        return [(start + begin, start + begin + self.room) for begin in begins]

    def _has_most_context(
        self, group: Ints, begin: Ints, end: Ints, first: Ints, used: Ints, row: Ints
    ) -> NDArray[np.bool_]:
        """Return which tokens of windows are read: those of words that have the most context in this window."""
        best = np.zeros(len(first), np.int64)  # the row that reads each token
        for text in np.unique(group):
            rows = np.flatnonzero(group == text)
            offset = int(begin[rows[0]])
            chosen = best_context(begin[rows] - offset, end[rows] - offset)
            best[offset : offset + len(chosen)] = rows[chosen]
        return np.asarray(best[np.maximum(first[used], 0)] == row)


_NONE = (np.empty(0, np.int64),) * 3


def _token_lengths(tokenizer: PreTrainedTokenizerBase) -> Ints | None:
    """Return the length of every token; None if the tokenizer has no prefix for the continuation of a word."""
    backend: Any = tokenizer.backend_tokenizer
    if not getattr(backend.model, "continuing_subword_prefix", None):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=True)
    lengths = np.zeros(max(vocabulary.values()) + 1, np.int64)
    for token, index in vocabulary.items():
        lengths[index] = len(token)
    return lengths


def _check_example(example: Any, number: int) -> str:
    if isinstance(example, str):
        return example
    if not isinstance(example, tuple | list) or not all(isinstance(word, str) for word in example):
        raise BadInput(f"Text {number} must be a string or a list of words, got {example!r:.60}.")
    for index, word in enumerate(example, 1):
        if not word or word.isspace():
            raise BadInput(f"Text {number}: word {index} is empty; remove it.")
    return join_words(example)
