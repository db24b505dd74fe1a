"""SQuAD windows as in EBERT's original implementation: those of transformers 3.3.1 with BERT's WordPiece."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from offramp.data.questions import Gold, Question
from offramp.errors import BadValue

__all__ = ["Document", "Window", "all_windows", "make_document", "make_windows", "split_words", "word_offsets"]

Ints = NDArray[np.int32]

NUM_SPECIAL_TOKENS = 3  # [CLS], and [SEP] twice
_WORD = re.compile("[^ \t\r\n\u202f]+")


@dataclass(frozen=True, eq=False)
class Window:
    """`[CLS] question [SEP] part of the context [SEP]`, padded on the right to the window length."""

    input_ids: Ints
    words: Ints  # each token's word in the context, or -1
    max_context: NDArray[np.bool_]  # whether this window has the most context around the token
    first: int  # first token of the context
    length: int  # without padding
    start: int = 0  # the answer's first token; 0, `[CLS]`, if the answer is not in this window
    end: int = 0  # the answer's last token
    impossible: bool = False

    @property
    def attention_mask(self) -> Ints:
        """1 for tokens, 0 for padding."""
        return (np.arange(len(self.input_ids)) < self.length).astype(np.int32)

    @property
    def token_type_ids(self) -> Ints:
        """1 for the context and the last `[SEP]`, 0 elsewhere."""
        return self.attention_mask * (np.arange(len(self.input_ids)) >= self.first).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Document:
    """A context's words and tokens."""

    context: str
    words: tuple[str, ...]
    ids: Ints  # of all tokens
    token_words: Ints  # each token's word
    first_tokens: tuple[int, ...]  # each word's first token


def split_words(context: str) -> list[str]:
    """Split a context at spaces, tabs, line ends and narrow no-break spaces."""
    return _WORD.findall(context)


def word_offsets(context: str) -> list[int]:
    """Return the word number of each character; white space belongs to the word before it, -1 before the first."""
    offsets, number, previous_end = [-1] * len(context), -1, 0
    for number, word in enumerate(_WORD.finditer(context)):
        offsets[previous_end : word.start()] = [number - 1] * (word.start() - previous_end)
        offsets[word.start() : word.end()] = [number] * (word.end() - word.start())
        previous_end = word.end()
    offsets[previous_end:] = [number] * (len(context) - previous_end)
    return offsets


def make_document(context: str, tokenizer: PreTrainedTokenizerBase) -> Document:
    """Split a context into words, and tokenize each word separately."""
    words = split_words(context)
    ids = _tokenize(tokenizer, words)
    lengths = np.array([len(pieces) for pieces in ids], dtype=np.int32)
    return Document(
        context,
        tuple(words),
        np.fromiter(chain.from_iterable(ids), dtype=np.int32),
        np.repeat(np.arange(len(words), dtype=np.int32), lengths),
        tuple((np.cumsum(lengths) - lengths).tolist()),
    )


def all_windows(
    questions: Iterable[Question],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int = 384,
    stride: int = 128,
    query_length: int = 64,
    training: bool = False,
) -> Iterator[list[Window]]:
    """Yield each question's windows; consecutive questions with the same context share its tokens."""
    document = None
    for question in questions:
        if document is None or document.context != question.context:
            document = make_document(question.context, tokenizer)
        yield make_windows(question, tokenizer, max_length, stride, query_length, training, document=document)


def make_windows(
    question: Question,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int = 384,
    stride: int = 128,
    query_length: int = 64,
    training: bool = False,
    *,
    document: Document | None = None,
) -> list[Window]:
    """Return a question's windows, with the position of its first answer if `training`.

    In training the list is empty if the words at the answer's position do not contain it. Pass `document` to reuse the
    context's tokens.
    """
    for name, value in {"max_length": max_length, "stride": stride, "query_length": query_length}.items():
        if value < 1:
            raise BadValue(f"`{name}` must be at least 1, got {value}.")
    document = document or make_document(question.context, tokenizer)
    impossible, target = question.impossible, None
    if training and not (impossible := impossible or not question.answers):
        target = _target(document, question.answers[0], tokenizer)
        if target is None:
            return []
    query = _tokenize(tokenizer, [question.question])[0][:query_length]
    prefix = [tokenizer.cls_token_id, *query, tokenizer.sep_token_id]
    room = max_length - len(query) - NUM_SPECIAL_TOKENS
    if room < 1:
        raise BadValue(
            f"Question {question.id} has {len(query)} tokens, which leaves no room for the context in windows of "
            f"{max_length} tokens."
        )
    slices = _window_slices(len(document.ids), room, stride)
    owners = _max_context_windows(slices, len(document.ids))
    padding = np.full(max_length, tokenizer.pad_token_id, dtype=np.int32)
    return [
        _window(padding, prefix, document, tokens, owners[tokens] == number, target, impossible)
        for number, tokens in enumerate(slices)
    ]


def _tokenize(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    if not texts:
        return []
    encoded = tokenizer(texts, add_special_tokens=False, padding=False, truncation=False, verbose=False)
    ids: list[list[int]] = encoded["input_ids"]
    return ids


def _target(document: Document, gold: Gold, tokenizer: PreTrainedTokenizerBase) -> tuple[int, int] | None:
    """Return the answer's first and last token in the document; None if the words there do not contain it."""
    offsets = word_offsets(document.context)
    if gold.start >= len(offsets):
        return None
    start, end = offsets[gold.start], offsets[min(gold.end, len(offsets)) - 1]
    if " ".join(gold.text.split()) not in " ".join(document.words[start : end + 1]):
        return None
    first = document.first_tokens[start]
    last = (document.first_tokens[end + 1] if end + 1 < len(document.words) else len(document.ids)) - 1
    return _narrow_span(document.ids, first, last, _tokenize(tokenizer, [gold.text])[0])


def _narrow_span(ids: Ints, first: int, last: int, answer: list[int]) -> tuple[int, int]:
    """Return the first occurrence of the answer's tokens in a span, or the span itself."""
    if answer:
        for start in range(first, last - len(answer) + 2):
            if ids[start : start + len(answer)].tolist() == answer:
                return start, start + len(answer) - 1
    return first, last


def _window_slices(num_tokens: int, room: int, stride: int) -> list[slice]:
    """Return the document's tokens in each window: one window every `stride` tokens until the end is reached."""
    slices = []
    for start in range(0, num_tokens, stride):
        slices.append(slice(start, min(start + room, num_tokens)))
        if start + room >= num_tokens:
            break
    return slices


def _max_context_windows(slices: list[slice], num_tokens: int) -> Ints:
    """Return, for each token, the first window with the most context around it."""
    best, owners = np.full(num_tokens, -np.inf), np.full(num_tokens, -1, dtype=np.int32)
    for number, tokens in enumerate(slices):
        length = tokens.stop - tokens.start
        before = np.arange(length)
        score = np.minimum(before, before[::-1]) + 0.01 * length
        owners[tokens] = np.where(score > best[tokens], number, owners[tokens])
        best[tokens] = np.maximum(score, best[tokens])
    return owners


def _window(
    padding: Ints,
    prefix: list[int],
    document: Document,
    tokens: slice,
    has_max_context: NDArray[np.bool_],
    target: tuple[int, int] | None,
    impossible: bool,
) -> Window:
    first, separator = len(prefix), prefix[-1]
    inside = slice(first, first + tokens.stop - tokens.start)
    ids, words, max_context = padding.copy(), np.full_like(padding, -1), np.zeros(len(padding), dtype=np.bool_)
    ids[:first], ids[inside], ids[inside.stop] = prefix, document.ids[tokens], separator
    words[inside], max_context[inside] = document.token_words[tokens], has_max_context
    start = end = 0
    if target is not None:
        if target[0] >= tokens.start and target[1] < tokens.stop:
            start, end = (token - tokens.start + first for token in target)
        else:
            impossible = True
    return Window(ids, words, max_context, first, inside.stop + 1, start, end, impossible)
