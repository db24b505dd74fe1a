"""How well an answer's words match the right ones: exact match and F1, as SQuAD's official script defines them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

__all__ = ["exact", "f1", "normalised"]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_MARKS = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """A text without case, ASCII punctuation, articles and superfluous white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_MARKS)).split())


def exact(text: str, golds: Iterable[str]) -> float:
    """1 if a text is one of the right answers, else 0; without any (that says something) the right one is none."""
    return float(normalised(text) in _targets(golds))


def f1(text: str, golds: Iterable[str]) -> float:
    """How well the words of a text match those of the right answer that they match best."""
    return max(_overlap(normalised(text).split(), gold.split()) for gold in _targets(golds))


def _targets(golds: Iterable[str]) -> list[str]:
    return [gold for gold in map(normalised, golds) if gold] or [""]


def _overlap(words: list[str], gold: list[str]) -> float:
    if not words or not gold:
        return float(words == gold)
    shared = (Counter(words) & Counter(gold)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(words), shared / len(gold)
    return 2 * precision * recall / (precision + recall)
