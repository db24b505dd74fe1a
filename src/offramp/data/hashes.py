"""64-bit hashes of texts, to recognize training rows, held-out rows, copies, and the rows of a trace."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offramp.data.reading import Text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["hash_text", "hash_texts", "mix", "normalizer", "occurrences", "row_keys"]

Normalize = Callable[[str], str]


def hash_text(text: Text, normalize: Normalize = str.strip) -> int:
    """Return a 64-bit hash of a text or pair, the same on every machine; surrounding whitespace is ignored."""
    parts = (text,) if isinstance(text, str) else text
    encoded = "\x1f".join(normalize(part) for part in parts).encode("utf-8")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")


def hash_texts(texts: Sequence[Text], normalize: Normalize = str.strip) -> NDArray[np.uint64]:
    """Return one hash per text; texts that `normalize` makes equal have the same hash."""
    return np.fromiter((hash_text(text, normalize) for text in texts), dtype=np.uint64, count=len(texts))


def normalizer(tokenizer: PreTrainedTokenizerBase) -> Normalize:
    """Return what the tokenizer does to a text before it splits it, such as lower-casing; spaces are collapsed."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    own = None if backend is None else backend.normalizer
    if own is None:
        return lambda text: " ".join(text.split())
    return lambda text: " ".join(own.normalize_str(text).split())


def mix(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return other hashes, so that an order by hash is independent of other orders."""
    with np.errstate(over="ignore"):
        mixed: NDArray[np.uint64] = (hashes ^ (hashes >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    return mixed


def occurrences(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return for every row how many rows before it have the same hash."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(hashes) else np.empty(0, int)
    counts = np.arange(len(hashes)) - np.repeat(starts, np.diff([*starts, len(hashes)]))
    result = np.empty(len(hashes), dtype=np.int64)
    result[order] = counts
    return result


def row_keys(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a key per row that also distinguishes the copies of a text; that of the first copy is its hash."""
    return hashes ^ mix(occurrences(hashes).astype(np.uint64))
