"""A question and as much of its context as fits: windows that overlap, so that answers are whole in one of them.

With windows of few tokens a long answer may not be: it starts where its first token has most around it.
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

STRIDE = 128  # tokens from one window's start to the next one's
QUERY = 64  # tokens of a question; the rest is cut off
END, START_AND_END = 1, 3  # marks of a token
SLICE = 1024  # questions that are tokenised together
EMPTY = np.empty(0, dtype=np.int64)
SPACES = np.array([code for code in range(0x3001) if chr(code).isspace()], dtype=np.uint32)


class QuestionEncoder:
    """Makes windows of questions and their contexts: a tokenizer, and how long a window may be.

    A row's marks say where an answer may end (1), where it may also start (3), else 0.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, limit: int, stride: int = STRIDE):
        if not tokenizer.is_fast:
            raise BadValue("Questions need a fast tokenizer, which knows where its tokens stand in the text.")
        self.tokenizer, self.limit, self.stride = tokenizer, limit, stride
        self.has_types = "token_type_ids" in tokenizer.model_input_names
        (self.before, self.between, self.behind), self.kinds = _template(tokenizer)
        self.special = sum(len(ids) for ids, _ in (self.before, self.between, self.behind))
        if limit - self.special < 2:
            least = self.special + 2
            raise BadValue(f"The maximum length is {limit} tokens; a question and its context need at least {least}.")

    def __call__(self, pairs: Sequence[Any], seen: int = 0) -> EncodedRows:
        """The windows of (question, context) pairs; `seen` pairs came before."""
        found, lengths, counts = [], [], []
        for start in range(0, len(pairs), SLICE):  # what the tokenizer says of a slice is large
            for table, each in self._slice(pairs[start : start + SLICE], seen + start):
                found.append(table)
                lengths.append(each)
                counts.append(len(each))
        owner = np.repeat(np.arange(len(pairs)), counts)
        rows, length = np.concatenate([np.zeros((5, 0), np.int32), *found], axis=1), np.concatenate([EMPTY, *lengths])
        ids, types, marks, begins, ends = (Ragged(row, length) for row in rows)
        return EncodedRows(pairs, ids, types if self.has_types else None, owner, marks, begins, ends)

    def _slice(self, pairs: Sequence[Any], seen: int) -> Iterator[tuple[Ints, Ints]]:
        """Of each pair a table of its windows' tokens, and the windows' lengths."""
        for number, pair in enumerate(pairs, seen + 1):
            _check(pair, number)
        asked = self._tokens([question for question, _ in pairs])
        contexts = list(dict.fromkeys(context for _, context in pairs))
        read = dict(zip(contexts, self._tokens(contexts), strict=True))
        for (query, _), pair in zip(asked, pairs, strict=True):
            yield self._windows(query, *read[pair[1]])

    def _tokens(self, texts: list[str]) -> list[tuple[Ints, Ints]]:
        """Each text's token ids, and where they begin and end in it."""
        if not texts:
            return []
        try:
            made = self.tokenizer(
                texts, add_special_tokens=False, return_offsets_mapping=True, return_attention_mask=False, verbose=False
            )
        except (TypeError, UnicodeEncodeError) as err:
            raise BadInput("A text cannot be encoded as UTF-8; is half a character pair in it?") from err
        return [
            (np.array(ids, dtype=np.int32), _trimmed(text, np.array(offsets, dtype=np.int32).reshape(-1, 2)))
            for text, ids, offsets in zip(texts, made["input_ids"], made["offset_mapping"], strict=True)
        ]

    def _windows(self, query: Ints, ids: Ints, offsets: Ints) -> tuple[Ints, Ints]:
        """A row each of ids, types, marks, begins and ends, all windows end to end; and the windows' lengths."""
        query = query[: min(QUERY, (self.limit - self.special) // 2)]
        room = self.limit - self.special - len(query)
        starts = _starts(len(ids), room, min(self.stride, max(1, room // 2)))
        stops = np.minimum(starts + room, len(ids))
        best = best_context(starts, stops)
        front, behind = self._around(query)
        found = []
        for window, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            middle = np.empty((5, stop - start), np.int32)
            middle[0], middle[1] = ids[start:stop], self.kinds[1]
            middle[2] = np.where(best[start:stop] == window, START_AND_END, END)
            middle[3:] = offsets[start:stop].T
            middle[2][middle[3] == middle[4]] = 0  # white space alone is no answer
            found += [front, middle, behind]
        return np.concatenate(found, axis=1), stops - starts + front.shape[1] + behind.shape[1]

    def _around(self, query: Ints) -> tuple[Ints, Ints]:
        """What stands before a window's part of the context and behind it, in such rows."""
        front = np.zeros((5, len(query) + len(self.before[0]) + len(self.between[0])), np.int32)
        front[0] = [*self.before[0], *query, *self.between[0]]
        front[1] = [*self.before[1], *[self.kinds[0]] * len(query), *self.between[1]]
        behind = np.zeros((5, len(self.behind[0])), np.int32)
        behind[:2] = self.behind
        return front, behind


def _trimmed(text: str, offsets: Ints) -> Ints:
    """Where tokens begin and end without the white space that some tokenizers count to them."""
    if not len(offsets):
        return offsets
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    places, blank = np.arange(len(characters)), np.isin(characters, SPACES)
    following = np.minimum.accumulate(np.where(blank, len(characters), places)[::-1])[::-1]
    before = np.maximum.accumulate(np.where(blank, -1, places)) + 1
    begins, ends = offsets.T
    some = (begins < ends) & (ends <= len(characters))
    begins[some] = np.minimum(following[begins[some]], ends[some])
    ends[some] = np.maximum(before[ends[some] - 1], begins[some])
    return offsets


def _starts(tokens: int, room: int, stride: int) -> Ints:
    """Where windows start: until one reaches the end; a context without a token has an empty one."""
    more = max(0, -(-(tokens - room) // stride))
    return np.arange(more + 1, dtype=np.int64) * stride


def best_context(starts: Ints, stops: Ints) -> Ints:
    """Which window sees most around each token: the less of left and right, then the longer window, then the first."""
    tokens = int(stops.max(initial=0))
    best, most = np.zeros(tokens, dtype=np.int64), np.full(tokens, -1.0)
    for window, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        left = np.arange(stop - start)
        scores = np.minimum(left, left[::-1]) + 0.01 * (stop - start)
        better = scores > most[start:stop]
        best[start:stop][better], most[start:stop][better] = window, scores[better]
    return best


def _template(tokenizer: PreTrainedTokenizerBase) -> tuple[list[tuple[list[int], list[int]]], tuple[int, int]]:
    """A pair's special tokens and their types, before, between and behind the two; and the types of the two."""
    made = tokenizer("a", "b", return_token_type_ids=True)
    whose = made.sequence_ids(0)
    first, second = ([place for place, of in enumerate(whose) if of == part] for part in (0, 1))
    parts = (slice(0, first[0]), slice(first[-1] + 1, second[0]), slice(second[-1] + 1, len(whose)))
    types = made["token_type_ids"]
    return [(made["input_ids"][part], types[part]) for part in parts], (types[first[0]], types[second[0]])


def _check(pair: Any, number: int) -> None:
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        raise BadInput(f"Row {number} is {pair!r:.60}; this model takes pairs of a question and a context.")
    for part, name in zip(pair, ("question", "context"), strict=True):
        if not part.strip():
            raise BadInput(f"Row {number}: its {name} is empty.")
