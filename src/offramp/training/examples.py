"""Tokenized rows as a PyTorch dataset, the collator that pads them, and the sampler that orders them."""

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

__all__ = ["Examples", "LengthGroupedSampler", "Padder", "encode_all"]

CHUNK = 4096  # examples that are tokenized together
BLOCK = 50  # batches whose rows are sorted by length together

Item = tuple["Examples", int]


def encode_all(encoder: Encoder, examples: Sequence[Any]) -> EncodedRows:
    """Return all examples as rows, in a few flat arrays to save memory."""
    parts = [encoder(examples[start : start + CHUNK], start) for start in range(0, len(examples), CHUNK)]
    return EncodedRows.concat(parts)


class Examples(Dataset[Item]):
    """Rows with their training targets.

    For evaluation (`targets=None`), row numbers from `first` on take their place, so that outputs can be matched to
    rows in any order.
    """

    def __init__(self, rows: EncodedRows, targets: NDArray[Any] | None = None, first: int = 0):
        self.rows, self.first = rows, first
        self.is_scored = targets is None
        self.targets = first + np.arange(len(rows)) if targets is None else _to_float32(targets)

    @property
    def lengths(self) -> NDArray[Any]:
        """Number of tokens per row."""
        return self.rows.lengths

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Item:
        return self, index


def _to_float32(labels: NDArray[Any]) -> NDArray[Any]:
    return labels.astype(np.float32) if labels.dtype.kind == "f" else labels


class Padder:
    """Collator: pads rows on the right to the longest row of the batch."""

    def __init__(self, pad_token: int):
        self.pad_token = pad_token

    def __call__(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Return the model's inputs and the labels; for evaluation also the marks, if the rows have them."""
        examples, indices = items[0][0], np.array([index for _, index in items])
        batch = Batch.from_rows(examples.rows, indices, self.pad_token)
        inputs = batch.as_inputs() | {"labels": torch.from_numpy(examples.targets[indices])}
        return inputs | ({"marks": batch.marks} if examples.is_scored and batch.marks is not None else {})


class LengthGroupedSampler(Sampler[int]):
    """A random order that depends only on the seed and the epoch, so that a resumed run continues with it.

    With lengths, the rows of each block of 50 batches are sorted by length and then the batches are shuffled: little
    padding, and the order of the batches stays random.
    """

    def __init__(self, num_rows: int, seed: int, batch_size: int, lengths: NDArray[np.int64] | None = None):
        self.num_rows, self.seed, self.batch_size, self.lengths = num_rows, seed, batch_size, lengths
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; called before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_rows

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng((self.seed, self.epoch))
        order = random.permutation(self.num_rows)
        if self.lengths is not None:
            size = self.batch_size * BLOCK
            blocks = [order[start : start + size] for start in range(0, self.num_rows, size)]
            blocks = [block[np.argsort(-self.lengths[block], kind="stable")] for block in blocks]
            order = self._shuffle_batches(np.concatenate(blocks), random)
        return iter(order.tolist())

    def _shuffle_batches(self, order: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        end = len(order) // self.batch_size * self.batch_size  # of the last full batch
        batches = random.permutation(order[:end].reshape(-1, self.batch_size))
        return np.concatenate([batches.ravel(), order[end:]])
