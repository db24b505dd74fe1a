"""64-bit hashes of texts, to recognize training rows, held-out rows and the rows of a trace."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offramp.data.reading import Text

__all__ = ["hash_text", "hash_texts"]


def hash_text(text: Text) -> int:
    """Return a 64-bit hash of a text or pair, the same on every machine; surrounding whitespace is ignored."""
    parts = (text,) if isinstance(text, str) else text
    encoded = "\x1f".join(part.strip() for part in parts).encode("utf-8")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")


def hash_texts(texts: Sequence[Text]) -> NDArray[np.uint64]:
    """Return one hash per text."""
    return np.fromiter((hash_text(text) for text in texts), dtype=np.uint64, count=len(texts))
