"""SQuAD's windows as EBERT's original has them: those of transformers 3.3.1 with BERT's WordPieces."""

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

__all__ = ["Document", "Window", "all_windows", "document_of", "split_words", "windows_of", "word_offsets"]

Ints = NDArray[np.int32]

ADDED = 3  # [CLS], and [SEP] twice
_WORD = re.compile("[^ \t\r\n\u202f]+")


@dataclass(frozen=True, eq=False)
class Window:
    """`[CLS] question [SEP] part of the context [SEP]`, padded on the right; its arrays are as long as that."""

    input_ids: Ints
    words: Ints  # the word of the context that a token is of, -1 where it is of none
    max_context: NDArray[np.bool_]  # no other window shows more around this token
    first: int  # where the context's tokens begin
    length: int  # without padding
    start: int = 0  # the answer's first token; 0, `[CLS]`, where it is not in here
    end: int = 0  # its last
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
    """A context's words, and the tokens that they are made of."""

    context: str
    words: tuple[str, ...]
    ids: Ints  # of all tokens
    word_of: Ints  # each token's word
    first_of: tuple[int, ...]  # each word's first token


def split_words(context: str) -> list[str]:
    """The words of a context: what stands between spaces, tabs, line ends and narrow no-break spaces."""
    return _WORD.findall(context)


def word_offsets(context: str) -> list[int]:
    """The word of each character; white space is of the word before it, -1 before the first."""
    offsets, number, behind = [-1] * len(context), -1, 0
    for number, word in enumerate(_WORD.finditer(context)):
        offsets[behind : word.start()] = [number - 1] * (word.start() - behind)
        offsets[word.start() : word.end()] = [number] * (word.end() - word.start())
        behind = word.end()
    offsets[behind:] = [number] * (len(context) - behind)
    return offsets


def document_of(context: str, tokenizer: PreTrainedTokenizerBase) -> Document:
    """A context cut into words, and each word by itself into tokens."""
    words = split_words(context)
    ids = _tokens(tokenizer, words)
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
    """Each question's windows; a context is cut into tokens once for all questions in a row about it."""
    document = None
    for question in questions:
        if document is None or document.context != question.context:
            document = document_of(question.context, tokenizer)
        yield windows_of(question, tokenizer, max_length, stride, query_length, training, document=document)


def windows_of(
    question: Question,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int = 384,
    stride: int = 128,
    query_length: int = 64,
    training: bool = False,
    *,
    document: Document | None = None,
) -> list[Window]:
    """A question's windows, with the place of its first answer when training.

    In training there are none if the words where the answer should stand do not contain it. `document` saves work
    where the context's tokens are known.
    """
    for name, value in {"max_length": max_length, "stride": stride, "query_length": query_length}.items():
        if value < 1:
            raise BadValue(f"{name} is {value}; it must be at least 1.")
    document = document or document_of(question.context, tokenizer)
    impossible, target = question.impossible, None
    if training and not (impossible := impossible or not question.answers):
        target = _target(document, question.answers[0], tokenizer)
        if target is None:
            return []
    asked = _tokens(tokenizer, [question.question])[0][:query_length]
    head = [tokenizer.cls_token_id, *asked, tokenizer.sep_token_id]
    room = max_length - len(asked) - ADDED
    if room < 1:
        raise BadValue(f"Windows of {max_length} tokens have no room behind a question of {len(asked)}: {question.id}.")
    parts = _parts(len(document.ids), room, stride)
    owners = _owners(parts, len(document.ids))
    blank = np.full(max_length, tokenizer.pad_token_id, dtype=np.int32)
    return [
        _window(blank, head, document, part, owners[part] == number, target, impossible)
        for number, part in enumerate(parts)
    ]


def _tokens(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    if not texts:
        return []
    encoded = tokenizer(texts, add_special_tokens=False, padding=False, truncation=False, verbose=False)
    ids: list[list[int]] = encoded["input_ids"]
    return ids


def _target(document: Document, gold: Gold, tokenizer: PreTrainedTokenizerBase) -> tuple[int, int] | None:
    """The answer's first and last token in the document; None where its words do not contain it."""
    offsets = word_offsets(document.context)
    if gold.start >= len(offsets):
        return None
    start, end = offsets[gold.start], offsets[min(gold.end, len(offsets)) - 1]
    if " ".join(gold.text.split()) not in " ".join(document.words[start : end + 1]):
        return None
    first = document.first_of[start]
    last = (document.first_of[end + 1] if end + 1 < len(document.words) else len(document.ids)) - 1
    return _tightened(document.ids, first, last, _tokens(tokenizer, [gold.text])[0])


def _tightened(ids: Ints, first: int, last: int, answer: list[int]) -> tuple[int, int]:
    """The first place in a span that has exactly the answer's tokens; the span itself if there is none."""
    if answer:
        for place in range(first, last - len(answer) + 2):
            if ids[place : place + len(answer)].tolist() == answer:
                return place, place + len(answer) - 1
    return first, last


def _parts(total: int, room: int, stride: int) -> list[slice]:
    """The document's tokens that each window holds: one every `stride`, until one reaches the end."""
    parts = []
    for start in range(0, total, stride):
        parts.append(slice(start, min(start + room, total)))
        if start + room >= total:
            break
    return parts


def _owners(parts: list[slice], total: int) -> Ints:
    """The window that shows most around each token; the first of equals."""
    best, owners = np.full(total, -np.inf), np.full(total, -1, dtype=np.int32)
    for number, part in enumerate(parts):
        length = part.stop - part.start
        left = np.arange(length)
        score = np.minimum(left, left[::-1]) + 0.01 * length
        owners[part] = np.where(score > best[part], number, owners[part])
        best[part] = np.maximum(score, best[part])
    return owners


def _window(
    blank: Ints,
    head: list[int],
    document: Document,
    part: slice,
    owned: NDArray[np.bool_],
    target: tuple[int, int] | None,
    impossible: bool,
) -> Window:
    first, separator = len(head), head[-1]
    inside = slice(first, first + part.stop - part.start)
    ids, words, max_context = blank.copy(), np.full_like(blank, -1), np.zeros(len(blank), dtype=np.bool_)
    ids[:first], ids[inside], ids[inside.stop] = head, document.ids[part], separator
    words[inside], max_context[inside] = document.word_of[part], owned
    start = end = 0
    if target is not None:
        if target[0] >= part.start and target[1] < part.stop:
            start, end = (place - part.start + first for place in target)
        else:
            impossible = True
    return Window(ids, words, max_context, first, inside.stop + 1, start, end, impossible)
