"""Run the rows of a large batch in parts of similar length.

A policy over groups needs the outputs of all rows of an example at an exit. One batch of all these rows would be mostly
padding and would not fit into the cache. Here the rows are divided by length into parts, which advance to the exit one
after the other; only their outputs are put together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from offramp.core.batch import Batch
from offramp.core.stepper import ExitOutput, ExitPoint, RowIndices, Stepper

__all__ = ["PART_TOKENS", "PartStepper", "Parts"]

PART_TOKENS = 1024  # padded tokens in a part

State = TypeVar("State")


@dataclass(frozen=True)
class Parts(Generic[State]):
    """The states of the parts, and the rows of the batch that each of them holds."""

    states: tuple[State, ...]
    rows: tuple[RowIndices, ...]


@dataclass(frozen=True)
class PartStepper(Generic[State]):
    """A stepper that runs its batches in parts of at most `part_tokens` padded tokens."""

    stepper: Stepper[State]
    part_tokens: int = PART_TOKENS

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """The exits of the stepper."""
        return self.stepper.exits

    def embed(self, batch: Batch) -> Parts[State]:
        """Divide the batch by length and embed its parts."""
        order = np.argsort(batch.lengths, kind="stable")
        lengths, rows, start = batch.lengths[order], [], 0
        while start < len(order):
            tokens = lengths[start:] * np.arange(1, len(order) - start + 1)
            stop = start + max(1, int(np.count_nonzero(tokens <= self.part_tokens)))
            rows.append(order[start:stop])
            start = stop
        states = tuple(self.stepper.embed(_take(batch, part)) for part in rows)
        return Parts(states, tuple(rows))

    def advance(self, state: Parts[State], point: ExitPoint) -> tuple[Parts[State], ExitOutput]:
        """Run every part up to the exit; return the outputs in the order of the batch."""
        advanced = [self.stepper.advance(part, point) for part in state.states]
        outputs = [output for _, output in advanced]
        order = torch.from_numpy(np.argsort(np.concatenate(state.rows))).to(outputs[0].logits.device)

        def join(name: str) -> Any:
            values: list[Tensor] = [getattr(output, name) for output in outputs]
            return None if values[0] is None else torch.cat(values).index_select(0, order)

        joined = replace(outputs[0], **{name: join(name) for name in ("logits", "uncertainty", "kept")})
        return replace(state, states=tuple(part for part, _ in advanced)), joined

    def keep(self, state: Parts[State], rows: RowIndices) -> Parts[State]:
        """Return the state of the given rows; parts without any of them are dropped."""
        states, kept = [], []
        numbers = np.full(sum(map(len, state.rows)), -1)
        numbers[rows] = np.arange(len(rows))  # their new positions
        for part, part_rows in zip(state.states, state.rows, strict=True):
            stay = np.flatnonzero(numbers[part_rows] >= 0)
            if len(stay):
                states.append(part if len(stay) == len(part_rows) else self.stepper.keep(part, stay))
                kept.append(numbers[part_rows[stay]])
        return Parts(tuple(states), tuple(kept))


def _take(batch: Batch, rows: RowIndices) -> Batch:
    """Return some rows of a batch, trimmed to the longest."""
    indices = torch.from_numpy(rows)
    columns: dict[str, Any] = {
        name: None if (tensor := getattr(batch, name)) is None else tensor.index_select(0, indices.to(tensor.device))
        for name in ("ids", "mask", "types", "marks")
    }
    group = None if batch.group is None else np.asarray(batch.group)[rows]
    part = replace(batch, **columns, lengths=batch.lengths[rows], group=group).trim()
    return replace(part, mask=None) if bool((part.lengths == part.longest).all()) else part
