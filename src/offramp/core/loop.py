"""The early-exit loop.

`step` advances the active rows to an exit, removes those that exit there and keeps the rest; `run` repeats it until all
rows have exited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from offramp.core.batch import Batch
from offramp.core.parts import PART_TOKENS, PartStepper
from offramp.core.stepper import PADDING_LOGIT, ExitOutput, ExitPoint, RowIndices, Stepper
from offramp.errors import BadValue
from offramp.policies.policy import Memory, Policy

__all__ = [
    "ActiveRows",
    "BatchResult",
    "ExitedRows",
    "collect",
    "exits_within",
    "iter_exited",
    "run",
    "run_all_exits",
    "step",
]

State = TypeVar("State")


@dataclass(frozen=True)
class BatchResult:
    """The exit and the logits of each row, in the batch's order."""

    logits: Tensor  # (rows, columns)
    exit: RowIndices  # (rows,), the exit's number, from 1
    layer: RowIndices  # (rows,), the exit's layer
    tokens: Tensor | None = None  # (rows, tokens, outputs), for per-token answer types


@dataclass(frozen=True)
class ActiveRows(Generic[State]):
    """Rows that have not exited yet."""

    state: State
    rows: RowIndices | None = None  # their indices in the batch; None: all rows
    memory: Memory | None = None  # the policy's memory of these rows
    group: RowIndices | None = None  # the example that each row belongs to


@dataclass(frozen=True)
class ExitedRows:
    """Rows that exited together."""

    rows: RowIndices | None
    output: ExitOutput


def exits_within(exits: Sequence[ExitPoint], max_layers: int | None) -> tuple[ExitPoint, ...]:
    """Return the exits on the first `max_layers` layers; None: all exits."""
    if max_layers is None:
        return tuple(exits)
    fitting = tuple(point for point in exits if point.layer <= max_layers)
    if not fitting:
        raise BadValue(f"`max_layers` must be at least {exits[0].layer} (the first exit's layer), got {max_layers}.")
    return fitting


def step(
    stepper: Stepper[State], active: ActiveRows[State], point: ExitPoint, policy: Policy, is_last: bool = False
) -> tuple[ActiveRows[State] | None, ExitedRows | None]:
    """Advance the active rows to an exit; return the rows that are still active and those that exited, or None.

    At the last exit all rows exit. The remaining rows are compacted only if a row exited.
    """
    state, output = stepper.advance(active.state, point)
    if is_last:
        return None, ExitedRows(active.rows, output)
    if policy.sees_groups:
        output = replace(output, group=_group(active, output))
    exits, memory = policy.step(output, active.memory)
    exit_mask = exits.numpy(force=True)  # synchronises with the device
    stay = np.flatnonzero(~exit_mask)
    if len(stay) == len(exit_mask):
        return ActiveRows(state, active.rows, memory, active.group), None
    if len(stay) == 0:
        return None, ExitedRows(active.rows, output)
    exiting = np.flatnonzero(exit_mask)
    exited = ExitedRows(_batch_indices(active, exiting), output.take(_tensor(exiting, output.logits)))
    if memory:
        remaining = _tensor(stay, exits)
        memory = {key: value.index_select(0, remaining) for key, value in memory.items()}
    group = None if active.group is None else active.group[stay]
    return ActiveRows(stepper.keep(state, stay), _batch_indices(active, stay), memory, group), exited


def run(stepper: Stepper[State], batch: Batch, policy: Policy, max_layers: int | None = None) -> BatchResult:
    """Run a batch with early exits; return the logits of each row at the exit that the policy chose."""
    return collect(list(iter_exited(stepper, batch, policy, max_layers)))


def iter_exited(
    stepper: Stepper[State], batch: Batch, policy: Policy, max_layers: int | None = None
) -> Iterator[ExitedRows]:
    """Run a batch with early exits and yield rows as soon as they exit."""
    if policy.sees_groups and batch.ids.numel() > PART_TOKENS:
        return _iter_exited(PartStepper(stepper), batch, policy, max_layers)
    return _iter_exited(stepper, batch, policy, max_layers)


def _iter_exited(
    stepper: Stepper[State], batch: Batch, policy: Policy, max_layers: int | None = None
) -> Iterator[ExitedRows]:
    points = exits_within(stepper.exits, max_layers)
    active: ActiveRows[State] | None = ActiveRows(stepper.embed(batch), group=batch.group)
    for point in points:
        is_last = point is points[-1]
        if active is None:
            break
        if is_last or policy.needs_exit(point):
            active, exited = step(stepper, active, point, policy, is_last)
            if exited is not None:
                yield exited


def run_all_exits(stepper: Stepper[State], batch: Batch) -> tuple[ExitOutput, ...]:
    """Run all layers without early exits; return the output of every exit."""
    state = stepper.embed(batch)
    outputs = []
    for point in stepper.exits:
        state, output = stepper.advance(state, point)
        outputs.append(output)
    return tuple(outputs)


def collect(exited: Sequence[ExitedRows]) -> BatchResult:
    """Merge the rows of all exits, in the batch's order."""
    if len(exited) == 1 and exited[0].rows is None:
        output, num_rows = exited[0].output, len(exited[0].output.logits)
        exits, layers = np.full(num_rows, output.exit), np.full(num_rows, output.layer)
        return BatchResult(output.logits, exits, layers, output.tokens)
    outputs = [part.output for part in exited]
    order = np.concatenate([part.rows for part in exited if part.rows is not None])
    sizes = [len(output.logits) for output in outputs]
    exits_and_layers = np.empty((2, len(order)), dtype=np.int64)
    by_part = [[output.exit for output in outputs], [output.layer for output in outputs]]
    exits_and_layers[:, order] = np.repeat(by_part, sizes, axis=1)
    logits = torch.cat([output.logits for output in outputs])
    indices = _tensor(order, logits)
    logits = torch.empty_like(logits).index_copy_(0, indices, logits)
    parts = [output.tokens for output in outputs if output.tokens is not None]
    tokens = None
    if parts:  # rows are trimmed when others exit, so parts differ in length
        longest = max(part.shape[1] for part in parts)
        pads = [(0, 0, 0, longest - part.shape[1]) for part in parts]
        padded = [nn.functional.pad(part, pad, value=PADDING_LOGIT) for part, pad in zip(parts, pads, strict=True)]
        tokens = torch.empty_like(torch.cat(padded)).index_copy_(0, indices, torch.cat(padded))
    exits, layers = exits_and_layers
    return BatchResult(logits, exits, layers, tokens)


def _group(active: ActiveRows[State], output: ExitOutput) -> Tensor:
    group = np.arange(len(output.logits)) if active.group is None else np.asarray(active.group, dtype=np.int64)
    if active.group is None and active.rows is not None:
        group = active.rows
    return _tensor(group, output.logits)


def _batch_indices(active: ActiveRows[State], rows: RowIndices) -> RowIndices:
    return rows if active.rows is None else active.rows[rows]


def _tensor(values: RowIndices, like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device)
