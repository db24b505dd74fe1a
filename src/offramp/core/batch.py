"""Rows of tokens: of different lengths while they wait, padded to a table when they run. The one place that pads."""

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

Ints = NDArray[Any]  # whole numbers


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, end to end."""

    values: Ints
    lengths: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """Lay rows end to end."""
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        flat = itertools.chain.from_iterable(rows)
        return cls(np.fromiter(flat, dtype=np.int32, count=int(lengths.sum())), lengths)

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """Several one after the other."""
        return cls(np.concatenate([part.values for part in parts]), np.concatenate([part.lengths for part in parts]))

    @cached_property
    def starts(self) -> Ints:
        """Where each row begins."""
        starts: Ints = np.cumsum(self.lengths) - self.lengths
        return starts

    def row(self, index: int) -> Ints:
        """One row's values."""
        start = int(self.starts[index])
        return self.values[start : start + int(self.lengths[index])]

    def take(self, rows: Ints) -> Ragged:
        """Some of the rows, copied."""
        lengths = self.lengths[rows]
        places = np.repeat(self.starts[rows] - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        return Ragged(self.values[places], lengths)

    def padded(self, rows: Ints, pad: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Some rows as a table (rows, longest), and where it is real."""
        lengths = self.lengths[rows]
        columns = np.arange(max(1, int(lengths.max())))
        real = columns < lengths[:, None]
        table = np.full(real.shape, pad, dtype=np.int64)
        table[real] = self.values[(self.starts[rows][:, None] + columns)[real]]
        return table, real


@dataclass(frozen=True)
class EncodedRows:
    """Examples as rows of tokens: one each, or several where an example is read in parts.

    `marks` is a number per token that the answer type gives a meaning; `begins` and `ends` are where a token stands in
    its text, in characters, for answer types that point into it.
    """

    examples: Sequence[Any]
    ids: Ragged
    types: Ragged | None
    group: Ints  # (rows,), the example that each row belongs to: from 0, ascending
    marks: Ragged | None = None
    begins: Ragged | None = None
    ends: Ragged | None = None
    truncated: int = 0  # examples that were longer than the limit

    def __len__(self) -> int:
        return len(self.ids.lengths)

    @property
    def lengths(self) -> Ints:
        """Tokens of each row."""
        return self.ids.lengths

    def take(self, examples: Sequence[int]) -> EncodedRows:
        """The rows of some examples, ascending."""
        rows = np.flatnonzero(np.isin(self.group, examples))
        group = np.searchsorted(np.asarray(examples), self.group[rows])
        return self._of_rows([self.examples[place] for place in examples], rows, group)

    def _of_rows(self, examples: list[Any], rows: Ints, group: Ints) -> EncodedRows:
        columns = {name: getattr(self, name) for name in _COLUMNS}
        some: dict[str, Any] = {name: None if one is None else one.take(rows) for name, one in columns.items()}
        return replace(self, examples=examples, group=group, truncated=0, **some)

    @classmethod
    def joined(cls, parts: Sequence[EncodedRows]) -> EncodedRows:
        """Several one after the other; their examples keep their order."""
        if len(parts) == 1:
            return parts[0]
        columns: dict[str, Any] = {}
        for name in _COLUMNS:
            each = [getattr(part, name) for part in parts]
            columns[name] = None if each[0] is None else Ragged.joined(each)
        firsts = np.cumsum([0, *(len(part.examples) for part in parts)])
        group = np.concatenate([part.group + first for part, first in zip(parts, firsts, strict=False)])
        examples = [example for part in parts for example in part.examples]
        return cls(examples, group=group, truncated=sum(part.truncated for part in parts), **columns)


_COLUMNS = ("ids", "types", "marks", "begins", "ends")


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, padded on the right; their lengths are known since they were tokenised.

    `lengths` and `group` stay on the host, where decisions about rows are made.
    """

    ids: Tensor  # (rows, tokens)
    mask: Tensor | None  # (rows, tokens), Boolean: where tokens are real; None: nothing is padded
    types: Tensor | None  # (rows, tokens), where the tokenizer has token types
    lengths: Ints  # (rows,), up to the last real token
    group: Ints | None = None  # (rows,), the example that each row belongs to; None: every row is one
    marks: Tensor | None = None  # (rows, tokens), what the answer type marked

    @classmethod
    def of_rows(cls, rows: EncodedRows, places: Ints, pad: int, device: torch.device | None = None) -> Batch:
        """Some of the rows, padded to the longest of them."""
        table, real = rows.ids.padded(places, pad)
        lengths = rows.ids.lengths[places]
        columns = {
            "ids": table,
            "mask": None if bool((lengths == table.shape[1]).all()) else real,
            "types": None if rows.types is None else rows.types.padded(places, 0)[0],
            "marks": None if rows.marks is None else rows.marks.padded(places, 0)[0],
        }
        tensors: dict[str, Any] = {
            name: None if values is None else torch.from_numpy(values) for name, values in columns.items()
        }
        batch = cls(**tensors, lengths=np.maximum(lengths, 1), group=rows.group[places])
        return batch if device is None or device.type == "cpu" else batch.to(device)

    @classmethod
    def of_parts(
        cls,
        parts: Sequence[tuple[EncodedRows, int]],
        pad: int,
        device: torch.device | None = None,
        group: Ints | None = None,
    ) -> Batch:
        """Single rows of several lists, such as those of different requests."""
        columns: dict[str, Any] = {}
        for name in _COLUMNS[:3]:
            each = [getattr(rows, name) for rows, _ in parts]
            values = [] if each[0] is None else [one.row(row) for one, (_, row) in zip(each, parts, strict=True)]
            lengths = np.array([len(one) for one in values], dtype=np.int64)
            columns[name] = Ragged(np.concatenate(values), lengths) if values else None
        numbers = np.arange(len(parts))
        rows = EncodedRows((), group=numbers if group is None else group, **columns)
        return cls.of_rows(rows, numbers, pad, device)

    @classmethod
    def of_tensors(
        cls,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        marks: Tensor | None = None,
    ) -> Batch:
        """What a caller tokenised: lengths are read off the mask, once."""
        mask = None if attention_mask is None else attention_mask.bool()
        if mask is None or bool(mask.all()):
            return cls(input_ids, None, token_type_ids, np.full(len(input_ids), input_ids.shape[1]), None, marks)
        if not bool(mask[:, 0].all()):
            row = int(mask[:, 0].logical_not().nonzero()[0])
            raise BadInput(
                f"Row {row} of the batch starts with padding; pad on the right (tokenizer.padding_side = 'right')."
            )
        lengths = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1).numpy(force=True)
        return cls(input_ids, mask, token_type_ids, lengths, None, marks)

    @classmethod
    def of_groups(cls, group: Ints | None = None) -> Batch:
        """Nothing but which rows belong together: for a replay, which reads no tokens."""
        return cls(torch.empty(0, 0, dtype=torch.long), None, None, np.empty(0, np.int64), group)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.lengths.max())

    def cut(self, length: int | None = None) -> Batch:
        """The same without padding that no row needs."""
        length = self.longest if length is None else length
        if length == self.ids.shape[1]:
            return self
        return self._mapped(lambda table: table[:, :length])

    def to(self, device: torch.device) -> Batch:
        """On another device."""
        return self._mapped(lambda table: table.to(device))

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Batch:
        tables = {name: getattr(self, name) for name in ("ids", "mask", "types", "marks")}
        changed: dict[str, Any] = {name: None if table is None else change(table) for name, table in tables.items()}
        return replace(self, **changed)

    def as_inputs(self) -> dict[str, Tensor]:
        """As transformers' own models take it."""
        mask = torch.ones_like(self.ids) if self.mask is None else self.mask.long()  # not every encoder takes Booleans
        inputs = {"input_ids": self.ids, "attention_mask": mask}
        return inputs if self.types is None else inputs | {"token_type_ids": self.types}
