"""A question and as much of its context as fits: windows that overlap, so that every answer is whole in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from offramp.batching import Ragged
from offramp.errors import BadInput, BadValue

__all__ = ["STRIDE", "WindowMaker", "Windows", "best_context"]

Ints = NDArray[np.int64]

STRIDE = 128  # tokens from one window's start to the next one's
QUERY = 64  # tokens of a question; the rest is cut off
END, START_AND_END = 1, 3  # marks of a token


@dataclass(frozen=True)
class Windows:
    """Windows of some questions, one after the other; `owner` says whose each is, counted from 0."""

    ids: Ragged
    types: Ragged | None
    marks: Ragged  # where an answer may end (1), where it may also start (3), else 0
    begins: Ragged  # where each of these tokens begins in its context, in characters
    ends: Ragged  # and ends
    owner: Ints

    def __len__(self) -> int:
        return len(self.owner)

    def spots(self, rows: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Where spans of tokens stand in their contexts, in characters."""
        return self.begins.values[self.begins.starts[rows] + starts], self.ends.values[self.ends.starts[rows] + ends]


class WindowMaker:
    """A tokenizer, and how long a window may be."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, limit: int, stride: int = STRIDE):
        if not tokenizer.is_fast:
            raise BadValue("Questions need a fast tokenizer, which knows where its tokens stand in the text.")
        self.tokenizer, self.limit, self.stride = tokenizer, limit, stride
        self.has_types = "token_type_ids" in tokenizer.model_input_names
        (self.before, self.between, self.behind), self.kinds = _template(tokenizer)
        self.special = sum(len(ids) for ids, _ in (self.before, self.between, self.behind))
        if limit - self.special < 2:
            raise BadValue(f"The maximum length is {limit} tokens; a question and its context need more.")

    def read(self, pairs: Sequence[Any], seen: int = 0) -> Windows:
        """The windows of (question, context) pairs; `seen` pairs came before."""
        for number, pair in enumerate(pairs, seen + 1):
            _check(pair, number)
        asked = self._tokens([question for question, _ in pairs])
        contexts = list(dict.fromkeys(context for _, context in pairs))
        read = dict(zip(contexts, self._tokens(contexts), strict=True))
        found = [self._windows(query[0], *read[pair[1]]) for query, pair in zip(asked, pairs, strict=True)]
        owner = np.repeat(np.arange(len(pairs)), [len(windows) for windows in found])
        rows = [window for windows in found for window in windows]
        ids, types, marks, begins, ends = (Ragged.of([row[column] for row in rows]) for column in range(5))
        return Windows(ids, types if self.has_types else None, marks, begins, ends, owner)

    def _tokens(self, texts: list[str]) -> list[tuple[list[int], NDArray[np.int64]]]:
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
            (ids, np.array(offsets, dtype=np.int64).reshape(-1, 2))
            for ids, offsets in zip(made["input_ids"], made["offset_mapping"], strict=True)
        ]

    def _windows(self, query: list[int], ids: list[int], offsets: Ints) -> list[tuple[list[int], ...]]:
        query = query[: min(QUERY, (self.limit - self.special) // 2)]
        room = self.limit - self.special - len(query)
        starts = _starts(len(ids), room, min(self.stride, max(1, room // 2)))
        stops = np.minimum(starts + room, len(ids))
        best = best_context(starts, stops)
        front = [*self.before[0], *query, *self.between[0]]
        front_types = [*self.before[1], *[self.kinds[0]] * len(query), *self.between[1]]
        behind, behind_types = self.behind
        found: list[tuple[list[int], ...]] = []
        for window, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            marks = np.where(best[start:stop] == window, START_AND_END, END)
            blank, tail = [0] * len(front), [0] * len(behind)
            found.append(
                (
                    [*front, *ids[start:stop], *behind],
                    [*front_types, *[self.kinds[1]] * (stop - start), *behind_types],
                    [*blank, *marks.tolist(), *tail],
                    [*blank, *offsets[start:stop, 0].tolist(), *tail],
                    [*blank, *offsets[start:stop, 1].tolist(), *tail],
                )
            )
        return found


def _starts(tokens: int, room: int, stride: int) -> Ints:
    """Where windows start: until one reaches the end; a context without a token has an empty one."""
    more = max(0, -(-(tokens - room) // stride))
    return np.arange(more + 1, dtype=np.int64) * stride


def best_context(starts: Ints, stops: Ints) -> Ints:
    """Which window sees most around each token: the less of left and right, then the longer window, then the first."""
    tokens = np.arange(int(stops.max(initial=0)))
    left, right = tokens - starts[:, None], stops[:, None] - 1 - tokens
    around = np.minimum(left, right)
    scores = np.where(around >= 0, around + 0.01 * (stops - starts)[:, None], -1.0)
    return np.asarray(scores.argmax(0), dtype=np.int64)


def _template(tokenizer: PreTrainedTokenizerBase) -> tuple[list[tuple[list[int], list[int]]], tuple[int, int]]:
    """A pair's special tokens and their types, before, between and behind the two; and the types of the two."""
    made = tokenizer("a", "b", return_token_type_ids=True)
    whose = made.sequence_ids(0)
    first, second = ([place for place, of in enumerate(whose) if of == part] for part in (0, 1))
    parts = (slice(0, first[0]), slice(first[-1] + 1, second[0]), slice(second[-1] + 1, len(whose)))
    types = made["token_type_ids"]
    return [(made["input_ids"][part], types[part]) for part in parts], (types[first[0]], types[second[0]])


def _check(pair: Any, number: int) -> None:
    if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        raise BadInput(f"Row {number} is {pair!r:.60}; this model takes pairs of a question and a context.")
    for part, name in zip(pair, ("question", "context"), strict=True):
        if not part.strip():
            raise BadInput(f"Row {number}: its {name} is empty.")
