"""Tokenised rows, stored unpadded (`Ragged`, `EncodedRows`) and padded into batches (`Batch`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offramp.errors import BadInput

__all__ = ["Batch", "EncodedRows", "Ints", "Ragged"]

Ints = NDArray[Any]  # an array of integers


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, stored in one flat array."""

    values: Ints
    lengths: Ints

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """Concatenate lists of integers."""
        if len(rows) == 1:
            return cls(np.array(rows[0], dtype=np.int32), np.array([len(rows[0])]))
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        flat = itertools.chain.from_iterable(rows)
        return cls(np.fromiter(flat, dtype=np.int32, count=int(lengths.sum())), lengths)

    @classmethod
    def concat(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate the rows of several arrays."""
        return cls(np.concatenate([part.values for part in parts]), np.concatenate([part.lengths for part in parts]))

    @cached_property
    def starts(self) -> Ints:
        """The index of each row's first value."""
        starts: Ints = np.cumsum(self.lengths) - self.lengths
        return starts

    def row(self, index: int) -> Ints:
        """Return the values of one row."""
        if len(self.lengths) == 1:
            return self.values
        start = int(self.starts[index])
        return self.values[start : start + int(self.lengths[index])]

    def take(self, rows: Ints) -> Ragged:
        """Return a copy of the given rows."""
        lengths = self.lengths[rows]
        indices = np.repeat(self.starts[rows] - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        return Ragged(self.values[indices], lengths)

    def padded(self, rows: Ints, pad: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return rows padded to the longest, (rows, tokens), and the mask of real tokens."""
        lengths = self.lengths[rows]
        if len(rows) == 1 and lengths[0]:
            row = self.row(int(rows[0])).astype(np.int64)[None]
            return row, np.ones(row.shape, bool)
        columns = np.arange(max(1, int(lengths.max())))
        real = columns < lengths[:, None]
        table = np.full(real.shape, pad, dtype=np.int64)
        table[real] = self.values[(self.starts[rows][:, None] + columns)[real]]
        return table, real


@dataclass(frozen=True)
class EncodedRows:
    """Tokenised examples: one row per example, or several if an example is split into windows.

    `marks` is an integer per token whose meaning depends on the answer type. `begins` and `ends` are the character
    offsets of each token, for answer types that point into the text.
    """

    examples: Sequence[Any]
    ids: Ragged
    types: Ragged | None
    group: Ints  # (rows,), the index of the example that each row belongs to, ascending
    marks: Ragged | None = None
    begins: Ragged | None = None
    ends: Ragged | None = None
    truncated: int = 0  # number of truncated examples

    def __len__(self) -> int:
        return len(self.ids.lengths)

    @property
    def lengths(self) -> Ints:
        """The number of tokens in each row."""
        return self.ids.lengths

    def take(self, examples: Sequence[int]) -> EncodedRows:
        """Return the rows of the given examples; `examples` must be ascending."""
        rows = np.flatnonzero(np.isin(self.group, examples))
        group = np.searchsorted(np.asarray(examples), self.group[rows])
        return self._select_rows([self.examples[index] for index in examples], rows, group)

    def _select_rows(self, examples: list[Any], rows: Ints, group: Ints) -> EncodedRows:
        columns = {name: getattr(self, name) for name in _COLUMNS}
        selected: dict[str, Any] = {
            name: None if column is None else column.take(rows) for name, column in columns.items()
        }
        return replace(self, examples=examples, group=group, truncated=0, **selected)

    @classmethod
    def concat(cls, parts: Sequence[EncodedRows]) -> EncodedRows:
        """Concatenate the rows and examples of several parts."""
        if len(parts) == 1:
            return parts[0]
        columns: dict[str, Any] = {}
        for name in _COLUMNS:
            values = [getattr(part, name) for part in parts]
            columns[name] = None if values[0] is None else Ragged.concat(values)
        offsets = np.cumsum([0, *(len(part.examples) for part in parts)])
        group = np.concatenate([part.group + offset for part, offset in zip(parts, offsets, strict=False)])
        examples = [example for part in parts for example in part.examples]
        return cls(examples, group=group, truncated=sum(part.truncated for part in parts), **columns)


_COLUMNS = ("ids", "types", "marks", "begins", "ends")


@dataclass(frozen=True)
class Batch:
    """Tokenised rows, padded on the right.

    `lengths` and `group` stay on the CPU, where rows are selected.
    """

    ids: Tensor  # (rows, tokens)
    mask: Tensor | None  # (rows, tokens), True for real tokens; None: no padding
    types: Tensor | None  # (rows, tokens), token type ids, if the tokenizer has them
    lengths: Ints  # (rows,), number of tokens up to the last real one
    group: Ints | None = None  # (rows,), the example that each row belongs to; None: one row per example
    marks: Tensor | None = None  # (rows, tokens), see `EncodedRows`

    @classmethod
    def from_rows(cls, rows: EncodedRows, indices: Ints, pad: int, device: torch.device | None = None) -> Batch:
        """Return the rows at `indices`, padded to the longest."""
        table, real = rows.ids.padded(indices, pad)
        lengths = rows.ids.lengths[indices]
        columns = {
            "ids": table,
            "mask": None if bool((lengths == table.shape[1]).all()) else real,
            "types": None if rows.types is None else rows.types.padded(indices, 0)[0],
            "marks": None if rows.marks is None else rows.marks.padded(indices, 0)[0],
        }
        tensors: dict[str, Any] = {
            name: None if values is None else torch.from_numpy(values) for name, values in columns.items()
        }
        batch = cls(**tensors, lengths=np.maximum(lengths, 1), group=rows.group[indices])
        return batch if device is None or device.type == "cpu" else batch.to(device)

    @classmethod
    def from_parts(
        cls,
        parts: Sequence[tuple[EncodedRows, int]],
        pad: int,
        device: torch.device | None = None,
        group: Ints | None = None,
    ) -> Batch:
        """Return single rows taken from several `EncodedRows`, such as those of different requests."""
        columns: dict[str, Any] = {}
        for name in _COLUMNS[:3]:
            arrays = [getattr(rows, name) for rows, _ in parts]
            values = (
                [] if arrays[0] is None else [array.row(row) for array, (_, row) in zip(arrays, parts, strict=True)]
            )
            lengths = np.array([len(value) for value in values], dtype=np.int64)
            columns[name] = Ragged(np.concatenate(values), lengths) if values else None
        indices = np.arange(len(parts))
        rows = EncodedRows((), group=indices if group is None else group, **columns)
        return cls.from_rows(rows, indices, pad, device)

    @classmethod
    def from_tensors(
        cls,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        marks: Tensor | None = None,
    ) -> Batch:
        """Return a batch of the tensors that a tokenizer returns; lengths are computed from the mask."""
        mask = None if attention_mask is None else attention_mask.bool()
        if mask is None or bool(mask.all()):
            return cls(input_ids, None, token_type_ids, np.full(len(input_ids), input_ids.shape[1]), None, marks)
        if not bool(mask[:, 0].all()):
            row = int(mask[:, 0].logical_not().nonzero()[0])
            raise BadInput(f"Row {row} of the batch is padded on the left. Set tokenizer.padding_side = 'right'.")
        lengths = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1).numpy(force=True)
        return cls(input_ids, mask, token_type_ids, lengths, None, marks)

    @classmethod
    def from_groups(cls, group: Ints | None = None) -> Batch:
        """Return a batch without tokens, which only says which rows belong together; for replaying a trace."""
        return cls(torch.empty(0, 0, dtype=torch.long), None, None, np.empty(0, np.int64), group)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def longest(self) -> int:
        """The number of tokens in the longest row."""
        return int(self.lengths.max())

    def trim(self, length: int | None = None) -> Batch:
        """Return the batch cut to `length` tokens; default: its longest row."""
        length = self.longest if length is None else length
        if length == self.ids.shape[1]:
            return self
        return self._map_tensors(lambda tensor: tensor[:, :length])

    def to(self, device: torch.device) -> Batch:
        """Return the batch on `device`."""
        return self._map_tensors(lambda tensor: tensor.to(device))

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> Batch:
        tensors = {name: getattr(self, name) for name in ("ids", "mask", "types", "marks")}
        mapped: dict[str, Any] = {
            name: None if tensor is None else function(tensor) for name, tensor in tensors.items()
        }
        return replace(self, **mapped)

    def as_inputs(self) -> dict[str, Tensor]:
        """Return the keyword arguments of a transformers model."""
        mask = torch.ones_like(self.ids) if self.mask is None else self.mask.long()  # some encoders reject Booleans
        inputs = {"input_ids": self.ids, "attention_mask": mask}
        return inputs if self.types is None else inputs | {"token_type_ids": self.types}
