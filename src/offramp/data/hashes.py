"""Texts as 64 bits: who was trained on, who was held out, whose trace this is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offramp.data.reading import Text

__all__ = ["hash_of", "hashes_of"]


def hash_of(text: Text) -> int:
    """64 bits of a text or pair, the same on every machine; space around a text does not count."""
    parts = (text,) if isinstance(text, str) else text
    written = "\x1f".join(part.strip() for part in parts).encode("utf-8")
    return int.from_bytes(hashlib.blake2b(written, digest_size=8).digest(), "little")


def hashes_of(texts: Sequence[Text]) -> NDArray[np.uint64]:
    """One hash per text."""
    return np.fromiter((hash_of(text) for text in texts), dtype=np.uint64, count=len(texts))
