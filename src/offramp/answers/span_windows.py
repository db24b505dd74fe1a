"""Split a context into overlapping windows, each with the question, so that an answer is completely in one of them.

A long answer may not fit into short windows. An answer may only start in the window with the most context around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offramp.core.batch import EncodedRows, Ints, Ragged
from offramp.errors import BadInput, BadValue

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["STRIDE", "QuestionEncoder", "best_context"]

STRIDE = 128  # tokens between the starts of consecutive windows
MAX_QUESTION_TOKENS = 64  # longer questions are truncated
END, START_AND_END = 1, 3  # marks of a token
CHUNK_SIZE = 1024  # questions that are tokenized together
EMPTY = np.empty(0, dtype=np.int64)
WHITESPACE = np.array([code for code in range(0x3001) if chr(code).isspace()], dtype=np.uint32)


class QuestionEncoder:
    """Encodes (question, context) pairs into windows of at most `limit` tokens.

    The marks of a row are 1 where an answer may end, 3 where it may also start, and 0 elsewhere.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, limit: int, stride: int = STRIDE):
        if not tokenizer.is_fast:
            raise BadValue("Question answering needs a fast tokenizer: slow ones do not return token offsets.")
        self.tokenizer, self.limit, self.stride = tokenizer, limit, stride
        self.has_types = "token_type_ids" in tokenizer.model_input_names
        (self.before, self.between, self.after), self.type_ids = _pair_template(tokenizer)
        self.num_special = sum(len(ids) for ids, _ in (self.before, self.between, self.after))
        if limit - self.num_special < 2:
            minimum = self.num_special + 2
            raise BadValue(f"The maximum length is {limit} tokens; a question and its context need at least {minimum}.")

    def __call__(self, pairs: Sequence[Any], seen: int = 0) -> EncodedRows:
        """Return the windows of (question, context) pairs; `seen` is the number of pairs before these."""
        tables, lengths, counts = [], [], []
        for start in range(0, len(pairs), CHUNK_SIZE):  # the tokenizer's output is large
            for table, window_lengths in self._encode_chunk(pairs[start : start + CHUNK_SIZE], seen + start):
                tables.append(table)
                lengths.append(window_lengths)
                counts.append(len(window_lengths))
        group = np.repeat(np.arange(len(pairs)), counts)
        rows, length = np.concatenate([np.zeros((5, 0), np.int32), *tables], axis=1), np.concatenate([EMPTY, *lengths])
        ids, types, marks, begins, ends = (Ragged(row, length) for row in rows)
        return EncodedRows(pairs, ids, types if self.has_types else None, group, marks, begins, ends)

    def _encode_chunk(self, pairs: Sequence[Any], seen: int) -> Iterator[tuple[Ints, Ints]]:
        """Yield the token table and the window lengths of each pair."""
        for number, pair in enumerate(pairs, seen + 1):
            _check_pair(pair, number)
        questions = self._tokenize([question for question, _ in pairs])
        contexts = list(dict.fromkeys(context for _, context in pairs))
        context_tokens = dict(zip(contexts, self._tokenize(contexts), strict=True))
        for (question_ids, _), pair in zip(questions, pairs, strict=True):
            yield self._windows(question_ids, *context_tokens[pair[1]])

    def _tokenize(self, texts: list[str]) -> list[tuple[Ints, Ints]]:
        """Return the token ids and character offsets of each text."""
        if not texts:
            return []
        try:
            encoded = self.tokenizer(
                texts, add_special_tokens=False, return_offsets_mapping=True, return_attention_mask=False, verbose=False
            )
        except (TypeError, UnicodeEncodeError) as err:
            raise BadInput("A text cannot be encoded as UTF-8; it may contain an unpaired surrogate.") from err
        return [
            (np.array(ids, dtype=np.int32), _strip_whitespace(text, np.array(offsets, dtype=np.int32).reshape(-1, 2)))
            for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True)
        ]

    def _windows(self, question_ids: Ints, ids: Ints, offsets: Ints) -> tuple[Ints, Ints]:
        """Return a table with the rows ids, types, marks, begins, ends of all windows, and the window lengths."""
        question_ids = question_ids[: min(MAX_QUESTION_TOKENS, (self.limit - self.num_special) // 2)]
        room = self.limit - self.num_special - len(question_ids)
        starts = _window_starts(len(ids), room, min(self.stride, max(1, room // 2)))
        stops = np.minimum(starts + room, len(ids))
        best = best_context(starts, stops)
        prefix, suffix = self._prefix_and_suffix(question_ids)
        tables = []
        for window, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            middle = np.empty((5, stop - start), np.int32)
            middle[0], middle[1] = ids[start:stop], self.type_ids[1]
            middle[2] = np.where(best[start:stop] == window, START_AND_END, END)
            middle[3:] = offsets[start:stop].T
            middle[2][middle[3] == middle[4]] = 0  # tokens that are only whitespace
            tables += [prefix, middle, suffix]
        return np.concatenate(tables, axis=1), stops - starts + prefix.shape[1] + suffix.shape[1]

    def _prefix_and_suffix(self, question_ids: Ints) -> tuple[Ints, Ints]:
        """Return the columns before and after the context in every window of a question."""
        prefix = np.zeros((5, len(question_ids) + len(self.before[0]) + len(self.between[0])), np.int32)
        prefix[0] = [*self.before[0], *question_ids, *self.between[0]]
        prefix[1] = [*self.before[1], *[self.type_ids[0]] * len(question_ids), *self.between[1]]
        suffix = np.zeros((5, len(self.after[0])), np.int32)
        suffix[:2] = self.after
        return prefix, suffix


def _strip_whitespace(text: str, offsets: Ints) -> Ints:
    """Exclude surrounding whitespace from the offsets: some tokenizers include it."""
    if not len(offsets):
        return offsets
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    positions, is_space = np.arange(len(characters)), np.isin(characters, WHITESPACE)
    next_begin = np.minimum.accumulate(np.where(is_space, len(characters), positions)[::-1])[::-1]
    previous_end = np.maximum.accumulate(np.where(is_space, -1, positions)) + 1
    begins, ends = offsets.T
    valid = (begins < ends) & (ends <= len(characters))
    begins[valid] = np.minimum(next_begin[begins[valid]], ends[valid])
    ends[valid] = np.maximum(previous_end[ends[valid] - 1], begins[valid])
    return offsets


def _window_starts(tokens: int, room: int, stride: int) -> Ints:
    """Return the starts of windows up to the end of the context; an empty context has one empty window."""
    additional = max(0, -(-(tokens - room) // stride))
    return np.arange(additional + 1, dtype=np.int64) * stride


def best_context(starts: Ints, stops: Ints) -> Ints:
    """Return the window with the most context around each token.

    Windows are compared by the smaller of the left and right context, then by length, then by order.
    """
    tokens = int(stops.max(initial=0))
    best, best_scores = np.zeros(tokens, dtype=np.int64), np.full(tokens, -1.0)
    for window, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        left_context = np.arange(stop - start)
        scores = np.minimum(left_context, left_context[::-1]) + 0.01 * (stop - start)
        better = scores > best_scores[start:stop]
        best[start:stop][better], best_scores[start:stop][better] = window, scores[better]
    return best


def _pair_template(tokenizer: PreTrainedTokenizerBase) -> tuple[list[tuple[list[int], list[int]]], tuple[int, int]]:
    """Return the special tokens (ids and types) before, between and after two texts, and the types of the texts."""
    encoded = tokenizer("a", "b", return_token_type_ids=True)
    sequence_ids = encoded.sequence_ids(0)
    first, second = ([index for index, text in enumerate(sequence_ids) if text == number] for number in (0, 1))
    parts = (slice(0, first[0]), slice(first[-1] + 1, second[0]), slice(second[-1] + 1, len(sequence_ids)))
    types = encoded["token_type_ids"]
    return [(encoded["input_ids"][part], types[part]) for part in parts], (types[first[0]], types[second[0]])


def _check_pair(pair: Any, number: int) -> None:
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        raise BadInput(f"Row {number} must be a pair of a question and a context, got {pair!r:.60}.")
    for part, name in zip(pair, ("question", "context"), strict=True):
        if not part.strip():
            raise BadInput(f"Row {number}: the {name} is empty.")
