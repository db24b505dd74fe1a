"""Exact match and token F1 of answers, as in SQuAD's official script."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

__all__ = ["exact_match", "normalize_answer", "token_f1"]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lowercase a text and remove ASCII punctuation, articles and extra whitespace."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(text: str, golds: Iterable[str]) -> float:
    """Return 1 if a text is one of the gold answers, else 0; without gold answers, only the empty text is correct."""
    return float(normalize_answer(text) in _normalized_golds(golds))


def token_f1(text: str, golds: Iterable[str]) -> float:
    """Return the largest token F1 of a text over the gold answers."""
    return max(_overlap_f1(normalize_answer(text).split(), gold.split()) for gold in _normalized_golds(golds))


def _normalized_golds(golds: Iterable[str]) -> list[str]:
    return [gold for gold in map(normalize_answer, golds) if gold] or [""]


def _overlap_f1(words: list[str], gold_words: list[str]) -> float:
    if not words or not gold_words:
        return float(words == gold_words)
    shared = (Counter(words) & Counter(gold_words)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(words), shared / len(gold_words)
    return 2 * precision * recall / (precision + recall)
