"""Tokenised rows in flat arrays, the batches they are padded into, and the order they come in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from transformers import PreTrainedTokenizerBase

from offramp.core.chunks import Tokens
from offramp.data.reading import Text

__all__ = ["Examples", "GroupedOrder", "Padder"]

CHUNK = 4096
BLOCK = 50  # batches that are sorted by length together


class Examples(Dataset[dict[str, Any]]):
    """Texts as token ids, one flat array for all of them, so that a million rows stay small."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text], labels: Any, max_length: int):
        tokens, lengths = Tokens(tokenizer, max_length), []
        parts: dict[str, list[NDArray[Any]]] = {}
        for start in range(0, len(texts), CHUNK):
            ids, types = tokens.read(texts[start : start + CHUNK], start)
            lengths.append(ids.lengths)
            parts.setdefault("input_ids", []).append(ids.values.astype(np.int32))
            if types is not None:
                parts.setdefault("token_type_ids", []).append(types.values.astype(np.int8))
        self.columns = {key: np.concatenate(pieces) for key, pieces in parts.items()}
        self.lengths = np.concatenate(lengths)
        self.ends = np.cumsum(self.lengths)
        self.labels = None if labels is None else _compact(np.asarray(labels))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        end = self.ends[index]
        row: dict[str, Any] = {key: flat[end - self.lengths[index] : end] for key, flat in self.columns.items()}
        if self.labels is not None:
            row["labels"] = self.labels[index]
        return row


def _compact(labels: NDArray[Any]) -> NDArray[Any]:
    return labels.astype(np.float32) if labels.dtype.kind == "f" else labels


class Padder:
    """Rows into a batch, padded on the right to the longest of them."""

    def __init__(self, pad_token: int):
        self.pad_token = pad_token

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Token ids, the mask, token types where there are some, labels."""
        lengths = np.array([len(row["input_ids"]) for row in rows])
        mask = np.arange(lengths.max()) < lengths[:, None]
        batch = {"attention_mask": torch.from_numpy(mask.astype(np.int64))}
        for key in rows[0]:
            if key == "labels":
                batch[key] = torch.from_numpy(np.stack([row[key] for row in rows]))
                continue
            filled = np.full(mask.shape, self.pad_token if key == "input_ids" else 0, dtype=np.int64)
            filled[mask] = np.concatenate([row[key] for row in rows])
            batch[key] = torch.from_numpy(filled)
        return batch


class GroupedOrder(Sampler[int]):
    """A random order per epoch that depends on seed and epoch alone, so that a resumed run goes on in it.

    With lengths, each block of 50 batches is sorted by length and its batches are shuffled again: little padding,
    and the order stays random where it matters.
    """

    def __init__(self, rows: int, seed: int, batch: int, lengths: NDArray[np.int64] | None = None):
        self.rows, self.seed, self.batch, self.lengths = rows, seed, batch, lengths
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the loop before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng((self.seed, self.epoch))
        order = random.permutation(self.rows)
        if self.lengths is not None:
            size = self.batch * BLOCK
            blocks = [order[start : start + size] for start in range(0, self.rows, size)]
            blocks = [block[np.argsort(-self.lengths[block], kind="stable")] for block in blocks]
            order = self._shuffle_batches(np.concatenate(blocks), random)
        return iter(order.tolist())

    def _shuffle_batches(self, order: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        whole = len(order) // self.batch * self.batch
        batches = random.permutation(order[:whole].reshape(-1, self.batch))
        return np.concatenate([batches.ravel(), order[whole:]])
