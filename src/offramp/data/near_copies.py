"""Find texts that are nearly the same: equal but for case, punctuation and numbers, or sharing long passages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offramp.data.reading import Text

__all__ = ["near_copies"]

WORD = re.compile(r"[^\W\d_]+|\d+")
SHINGLE = 8  # words
SKETCH = 4  # smallest shingle hashes that represent a long text
SHARED = 3  # of them that two near-copies have in common
MAX_TEXTS = 8  # that are kept per hash, so that templates do not take quadratic time


def near_copies(texts: Sequence[Text], others: Sequence[Text]) -> NDArray[np.bool_]:
    """Return which texts are nearly the same as one of the others."""
    known: dict[int, set[int]] = {}  # from a hash to the texts that have it
    for number, text in enumerate(others):
        for key in _sketch(text):
            numbers = known.setdefault(key, set())
            if len(numbers) < MAX_TEXTS:
                numbers.add(number)
    return np.array([_matches(_sketch(text), known) for text in texts], dtype=bool)


def _matches(sketch: list[int], known: dict[int, set[int]]) -> bool:
    if len(sketch) == 1:
        return sketch[0] in known
    needed = min(SHARED, len(sketch))
    counts: dict[int, int] = {}
    for key in sketch:
        for number in known.get(key, ()):
            counts[number] = counts.get(number, 0) + 1
    return max(counts.values(), default=0) >= needed


def _sketch(text: Text) -> list[int]:
    """Return hashes that near-copies share: of all words of a short text, or of some passages of a long one."""
    joined = text if isinstance(text, str) else " \x1f ".join(text)
    words = ["0" if word.isdigit() else word for word in WORD.findall(joined.casefold())]
    if len(words) < SHINGLE + SKETCH:
        return [_hash(words)]
    hashes = {_hash(words[start : start + SHINGLE]) for start in range(len(words) - SHINGLE + 1)}
    return sorted(hashes)[:SKETCH]


def _hash(words: Sequence[str]) -> int:
    return int.from_bytes(hashlib.blake2b(" ".join(words).encode("utf-8"), digest_size=8).digest(), "little")
