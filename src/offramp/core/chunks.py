"""From texts to batches: chunks of a stream, sorted by length, so many tokens at a time."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from offramp.core.stepper import Batch
from offramp.data.reading import Text
from offramp.errors import BadInput, BadValue

if TYPE_CHECKING:
    from offramp.answers.span_windows import WindowMaker, Windows

__all__ = ["CHUNK", "Chunk", "Ragged", "Text", "Tokens", "batches_by_tokens", "chunks", "padded_tokens"]

Ints = NDArray[np.int64]

CHUNK = 4096  # texts that are sorted together, and
CHUNK_CHARACTERS = 4_000_000  # how long they may be together: what bounds the memory of a long stream
SLICE = 128  # texts that are tokenised together
ENOUGH = 40  # characters of a text per token of the limit; if they do not fill it,
LONGEST = 1_000_000  # characters are tokenised, and what is beyond them is never read
BATCH_TOKENS = 1024  # padded tokens in a batch on a CPU, where larger ones leave the cache
BATCH_TOKENS_ELSEWHERE = 16384  # an accelerator wants more at once

logger = logging.getLogger("offramp")


def padded_tokens(batch_tokens: int | None, device: torch.device) -> int:
    """Padded tokens in a batch, as given or as suits the device."""
    if batch_tokens is None:
        return BATCH_TOKENS if device.type == "cpu" else BATCH_TOKENS_ELSEWHERE
    if batch_tokens < 1:
        raise BadValue(f"batch_tokens is {batch_tokens}; it must be at least 1.")
    return batch_tokens


@dataclass(frozen=True)
class Chunk:
    """Texts that are sorted together, tokenised; at most one chunk of a stream is in memory at a time."""

    first: int  # texts of the stream that came before
    texts: list[Text]
    ids: Ragged
    types: Ragged | None
    order: Ints  # by length
    pad: int
    device: torch.device
    budget: int
    bar: Any
    windows: Windows | None = None  # of questions, whose rows are windows of their contexts

    def batches(self) -> Iterator[Batch]:
        """Batches of like lengths; one after the other their rows are the texts in `order`."""
        for start, stop in batches_by_tokens(self.ids.lengths[self.order], self.budget):
            yield self.batch(self.order[start:stop])
            if self.windows is None:
                self.bar.update(stop - start)
        if self.windows is not None:
            self.bar.update(len(self.texts))

    def of_rows(self, size: int) -> Iterator[tuple[Ints, Batch]]:
        """Batches of so many rows of like lengths, and which rows these are."""
        for start in range(0, len(self.order), size):
            rows = self.order[start : start + size]
            yield rows, self.batch(rows)

    def batch(self, rows: Ints) -> Batch:
        """Some rows, padded to the longest of them."""
        table, real = self.ids.padded(rows, self.pad)
        batch = {"input_ids": torch.from_numpy(table), "attention_mask": torch.from_numpy(real)}
        if self.types is not None:
            batch["token_type_ids"] = torch.from_numpy(self.types.padded(rows, 0)[0])
        if self.windows is not None:
            batch["marks"] = torch.from_numpy(self.windows.marks.padded(rows, 0)[0])
        return {key: value.to(self.device) for key, value in batch.items()}

    @property
    def back(self) -> Ints:
        """Where each row (a text, or a window of a question) stands among the batches' rows."""
        return np.argsort(self.order)


def chunks(
    tokens: Tokens | WindowMaker,
    texts: Iterable[Text],
    budget: int,
    device: torch.device,
    progress: bool | None = None,
    quiet: bool = False,
    size: int = CHUNK,
) -> Iterator[Chunk]:
    """A stream's texts, chunk by chunk; tells in the end, unless `quiet`, how many were too long."""
    total = len(texts) if isinstance(texts, Sized) else None
    hidden = None if progress is None else not progress  # None: shown on a terminal, and only for long work
    stream = iter(texts)
    seen = 0
    with tqdm(total=total, unit=" texts", disable=hidden, delay=0 if progress else 2, leave=False) as bar:
        while some := _take(stream, size):
            windows = None
            if isinstance(tokens, Tokens):
                ids, types = tokens.read(some, seen)
            else:
                windows = tokens.read(some, seen)
                ids, types = windows.ids, windows.types
            order = np.argsort(ids.lengths, kind="stable")
            pad = tokens.tokenizer.pad_token_id or 0
            yield Chunk(seen, some, ids, types, order, pad, device, budget, bar, windows)
            seen += len(some)
    if isinstance(tokens, Tokens) and tokens.cut and not quiet:
        are, they = ("texts are", "they were") if tokens.cut > 1 else ("text is", "it was")
        logger.warning("%d %s longer than %d tokens; %s cut there.", tokens.cut, are, tokens.limit, they)


def _take(stream: Iterator[Text], size: int) -> list[Text]:
    """The next chunk of a stream; what is not needed for it is not asked for."""
    chunk: list[Text] = []
    characters = 0
    for text in itertools.islice(stream, size):
        chunk.append(text)
        characters += len(text) if isinstance(text, str) else len(str(text))
        if characters > CHUNK_CHARACTERS:
            break
    return chunk


def batches_by_tokens(lengths: Ints, budget: int) -> Iterator[tuple[int, int]]:
    """Cut ascending lengths into runs whose rows times longest row stay within the budget (one row always fits)."""
    start = 0
    while start < len(lengths):
        most = max(1, budget // max(1, int(lengths[start])))
        run = lengths[start : start + most]
        fits = np.count_nonzero(run * np.arange(1, len(run) + 1) <= budget)  # ascending, so these come first
        stop = start + max(1, int(fits))
        yield start, stop
        start = stop


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, end to end."""

    values: Ints
    lengths: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """Lay rows end to end."""
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        flat = itertools.chain.from_iterable(rows)
        return cls(np.fromiter(flat, dtype=np.int64, count=int(lengths.sum())), lengths)

    @cached_property
    def starts(self) -> Ints:
        """Where each row begins."""
        return np.cumsum(self.lengths) - self.lengths

    def padded(self, rows: Ints, pad: int) -> tuple[Ints, NDArray[np.bool_]]:
        """Some rows as a table (rows, longest), and where it is real."""
        lengths = self.lengths[rows]
        starts = self.starts[rows]
        columns = np.arange(max(1, int(lengths.max())))
        real = columns < lengths[:, None]
        table = np.full(real.shape, pad, dtype=np.int64)
        table[real] = self.values[(starts[:, None] + columns)[real]]
        return table, real


class Tokens:
    """A tokenizer, the longest text that it may make, whether texts are pairs, and how many it had to cut."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, limit: int, pairs: bool | None = None):
        self.tokenizer, self.limit, self.pairs = tokenizer, limit, pairs
        self.cut = 0

    def read(self, texts: Sequence[Text], seen: int) -> tuple[Ragged, Ragged | None]:
        """Token ids and token types of a chunk; `seen` texts came before it."""
        single = [_is_single(text, seen + number) for number, text in enumerate(texts, 1)]
        if self.pairs in single:
            number = seen + single.index(bool(self.pairs)) + 1
            ours, theirs = ("a single text", "pairs") if self.pairs else ("a pair", "single texts")
            raise BadInput(f"Text {number} is {ours}, and this model was trained on {theirs}.")
        ids: list[list[int]] = [[]] * len(texts)
        types: list[list[int]] = [[]] * len(texts)
        for kind in set(single):  # the tokenizer takes single texts or pairs, not both at once
            rows = [row for row, is_single in enumerate(single) if is_single is kind]
            for start in range(0, len(rows), SLICE):  # what is cut off a long text is kept as long as its slice
                some = rows[start : start + SLICE]
                first = [texts[row] if kind else texts[row][0] for row in some]
                encoded = self._encode(first, None if kind else [texts[row][1] for row in some], seen + some[0] + 1)
                for row, *tokens in zip(some, *encoded, strict=True):
                    ids[row], types[row] = tokens
        has_types = "token_type_ids" in self.tokenizer.model_input_names
        return Ragged.of(ids), Ragged.of(types) if has_types else None

    def _encode(
        self, first: list[Any], second: list[Any] | None, number: int
    ) -> tuple[list[list[int]], list[list[int]]]:
        encoded, cut = self._tokenised(first, second, number)
        # without special tokens an empty text has no token at all; one pad stands for it
        ids: list[list[int]] = [row or [self.tokenizer.pad_token_id or 0] for row in encoded["input_ids"]]
        self.cut += len(cut | self._overflowing(encoded))
        return ids, [row or [0] for row in encoded.get("token_type_ids", ids)]

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
