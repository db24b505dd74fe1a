"""Variations of the user's texts as further training texts: the full model predicts them, so they need no labels.

Exits that imitate a model learn from its predictions, and its predictions on texts that are only similar to the user's
are as good to learn from. Three kinds take turns: words dropped, a span replaced by one of another text, and two texts
joined. In pairs, one side varies; instead of joining two texts, the second text is taken from another pair.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from offramp.data.reading import Text

__all__ = ["vary"]

DROPPED = 0.2  # fraction of the words
MIN_WORDS = 3  # texts with fewer words are varied by characters, for languages without spaces


def vary(texts: Sequence[Text], count: int, seed: int) -> list[Text]:
    """Return `count` variations of every text.

    Examples:
        >>> vary(["a lovely film", "a dull and lifeless film"], 1, seed=0)
        ['a lovely', 'a and lifeless film']
    """
    generator = random.Random(seed)
    kinds = (_drop, _replace_span, _join)
    return [_vary(text, texts, kinds[turn % len(kinds)], generator) for turn in range(count) for text in texts]


Words = list[str]
Kind = Callable[[Words, Words, random.Random], Words]


def _vary(text: Text, texts: Sequence[Text], kind: Kind, generator: random.Random) -> Text:
    other = texts[generator.randrange(len(texts))]
    if isinstance(text, str):
        assert isinstance(other, str)
        return _vary_text(text, other, kind, generator)
    assert not isinstance(other, str)
    if kind is _join:
        return (text[0], other[1])
    side = generator.randrange(2)
    varied = _vary_text(text[side], other[side], kind, generator)
    return (varied, text[1]) if side == 0 else (text[0], varied)


def _vary_text(text: str, other: str, kind: Kind, generator: random.Random) -> str:
    words, separator = text.split(), " "
    if len(words) < MIN_WORDS and kind is not _join:
        words, separator = list(text), ""
    if not words:
        return text
    other_words = other.split() if separator else list(other)
    return separator.join(kind(words, other_words, generator)) or text


def _drop(words: Words, other: Words, generator: random.Random) -> Words:
    kept = [word for word in words if generator.random() >= DROPPED]
    if len(kept) == len(words) > 1:
        kept.pop(generator.randrange(len(kept)))
    return kept


def _replace_span(words: Words, other: Words, generator: random.Random) -> Words:
    """Replace up to half of the words by as many words of another text."""
    start, length = generator.randrange(len(words)), generator.randint(1, max(1, len(words) // 2))
    first = generator.randrange(max(1, len(other) - length + 1))
    return [*words[:start], *other[first : first + length], *words[start + length :]]


def _join(words: Words, other: Words, generator: random.Random) -> Words:
    return words + other
