"""Tokenised rows as a data set of the library's loop, the batches they are padded into, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from offramp.answers.answer_type import Encoder
from offramp.core.batch import Batch, EncodedRows

__all__ = ["Examples", "GroupedOrder", "Padder", "encoded"]

CHUNK = 4096  # examples that are tokenised together
BLOCK = 50  # batches that are sorted by length together

Item = tuple["Examples", int]


def encoded(encoder: Encoder, examples: Sequence[Any]) -> EncodedRows:
    """All examples as rows, end to end in a few flat arrays, so that a million stay small."""
    parts = [encoder(examples[start : start + CHUNK], start) for start in range(0, len(examples), CHUNK)]
    return EncodedRows.joined(parts)


class Examples(Dataset[Item]):
    """Rows and what each is trained on; to be scored, its own number, so that outputs find their rows in any order."""

    def __init__(self, rows: EncodedRows, targets: NDArray[Any] | None = None, first: int = 0):
        self.rows, self.first = rows, first
        self.is_scored = targets is None
        numbers = first + np.arange(len(rows))
        self.targets = numbers if targets is None else _compact(targets)

    @property
    def lengths(self) -> NDArray[Any]:
        """Tokens of each row."""
        return self.rows.lengths

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Item:
        return self, index


def _compact(labels: NDArray[Any]) -> NDArray[Any]:
    return labels.astype(np.float32) if labels.dtype.kind == "f" else labels


class Padder:
    """Rows into a batch, padded on the right to the longest of them."""

    def __init__(self, pad_token: int):
        self.pad_token = pad_token

    def __call__(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Token ids, the mask, token types where there are some, labels; marks where rows are scored."""
        examples, places = items[0][0], np.array([index for _, index in items])
        batch = Batch.of_rows(examples.rows, places, self.pad_token)
        inputs = batch.as_inputs() | {"labels": torch.from_numpy(examples.targets[places])}
        return inputs | ({"marks": batch.marks} if examples.is_scored and batch.marks is not None else {})


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
