"""The only place where rows exit.

`start` embeds a batch, `step` takes the rows that are still active to an exit, lets some of them exit and keeps the
rest, `run` repeats that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from offramp.core.batch import Batch
from offramp.core.stepper import HIDDEN, ExitOutput, ExitPoint, Positions, Stepper
from offramp.errors import BadValue
from offramp.policies.policy import Memory, Policy

__all__ = [
    "ActiveRows",
    "BatchResult",
    "ExitedRows",
    "collect",
    "every_exit",
    "exiting",
    "run",
    "step",
    "within_budget",
]

State = TypeVar("State")


@dataclass(frozen=True)
class BatchResult:
    """Where each row of a batch exited, and its answer there, in the batch's order."""

    logits: Tensor  # (rows, columns)
    exit: Tensor  # (rows,), the exit's number, from 1
    layer: Tensor  # (rows,), the layer that the exit sits on
    tokens: Tensor | None = None  # (rows, tokens, outputs), where every token is answered


@dataclass(frozen=True)
class ActiveRows(Generic[State]):
    """Rows that have not exited yet."""

    state: State
    rows: Positions | None = None  # their numbers in the batch; None: 0, 1, …
    memory: Memory | None = None  # what the policy remembers of them
    group: Positions | None = None  # the example that each belongs to


@dataclass(frozen=True)
class ExitedRows:
    """Rows that exited together."""

    rows: Positions | None
    output: ExitOutput


def within_budget(exits: Sequence[ExitPoint], max_layers: int | None) -> tuple[ExitPoint, ...]:
    """The exits that a row may use when it may run at most `max_layers` layers."""
    if max_layers is None:
        return tuple(exits)
    fitting = tuple(point for point in exits if point.layer <= max_layers)
    if not fitting:
        raise BadValue(f"`max_layers` is {max_layers}, but the first exit sits on layer {exits[0].layer}.")
    return fitting


def step(
    stepper: Stepper[State], active: ActiveRows[State], point: ExitPoint, policy: Policy, is_last: bool = False
) -> tuple[ActiveRows[State] | None, ExitedRows | None]:
    """Take rows to an exit: those that are still active (None: none), and those that exited there (None: none).

    At the last exit all rows exit and the policy is not asked. The rows that stay are compacted only if some exited.
    """
    state, output = stepper.advance(active.state, point)
    if is_last:
        return None, ExitedRows(active.rows, output)
    if policy.sees_groups:
        output = replace(output, group=_group(active, output))
    leaves, memory = policy.step(output, active.memory)
    decided = leaves.numpy(force=True)  # the one place where the host waits
    stay = np.flatnonzero(~decided)
    if len(stay) == len(decided):
        return ActiveRows(state, active.rows, memory, active.group), None
    if len(stay) == 0:
        return None, ExitedRows(active.rows, output)
    gone = np.flatnonzero(decided)
    exited = ExitedRows(_numbers(active, gone), output.take(_tensor(gone, output.logits)))
    if memory:
        kept = _tensor(stay, leaves)
        memory = {key: value.index_select(0, kept) for key, value in memory.items()}
    group = None if active.group is None else active.group[stay]
    return ActiveRows(stepper.keep(state, stay), _numbers(active, stay), memory, group), exited


def run(stepper: Stepper[State], batch: Batch, policy: Policy, max_layers: int | None = None) -> BatchResult:
    """Take a batch through the exits; after each, the rows that the policy lets go exit with its answer."""
    return collect(list(exiting(stepper, batch, policy, max_layers)))


def exiting(
    stepper: Stepper[State], batch: Batch, policy: Policy, max_layers: int | None = None
) -> Iterator[ExitedRows]:
    """The same as `run`, as rows exit: the others have not gone on yet."""
    points = within_budget(stepper.exits, max_layers)
    active: ActiveRows[State] | None = ActiveRows(stepper.embed(batch), group=batch.group)
    for point in points:
        is_last = point is points[-1]
        if active is None:
            break
        if is_last or policy.listens(point):
            active, exited = step(stepper, active, point, policy, is_last)
            if exited is not None:
                yield exited


def every_exit(stepper: Stepper[State], batch: Batch) -> tuple[ExitOutput, ...]:
    """What every exit answers for every row: a full pass in which no row exits."""
    state = stepper.embed(batch)
    every = []
    for point in stepper.exits:
        state, output = stepper.advance(state, point)
        every.append(output)
    return tuple(every)


def collect(exited: Sequence[ExitedRows]) -> BatchResult:
    """Rows that exited at different exits, back in the batch's order."""
    if len(exited) == 1 and exited[0].rows is None:
        output, rows = exited[0].output, len(exited[0].output.logits)
        exits, layers = np.full(rows, output.exit), np.full(rows, output.layer)
        return BatchResult(output.logits, _tensor(exits, output.logits), _tensor(layers, output.logits), output.tokens)
    order = np.concatenate([one.rows for one in exited if one.rows is not None])
    sizes = [len(one.output.logits) for one in exited]
    exited_at = np.empty((2, len(order)), dtype=np.int64)
    places = [[one.output.exit for one in exited], [one.output.layer for one in exited]]
    exited_at[:, order] = np.repeat(places, sizes, axis=1)
    logits = torch.cat([one.output.logits for one in exited])
    back = _tensor(order, logits)
    logits = torch.empty_like(logits).index_copy_(0, back, logits)
    each = [one.output.tokens for one in exited if one.output.tokens is not None]
    tokens = None
    if each:  # rows that stayed were cut to the longest of them
        longest = max(one.shape[1] for one in each)
        padded = [torch.nn.functional.pad(one, (0, 0, 0, longest - one.shape[1]), value=HIDDEN) for one in each]
        tokens = torch.empty_like(torch.cat(padded)).index_copy_(0, back, torch.cat(padded))
    return BatchResult(logits, _tensor(exited_at[0], logits), _tensor(exited_at[1], logits), tokens)


def _group(active: ActiveRows[State], output: ExitOutput) -> Tensor:
    group = np.arange(len(output.logits)) if active.group is None else np.asarray(active.group, dtype=np.int64)
    if active.group is None and active.rows is not None:
        group = active.rows
    return _tensor(group, output.logits)


def _numbers(active: ActiveRows[State], places: Positions) -> Positions:
    return places if active.rows is None else active.rows[places]


def _tensor(numbers: Positions, like: Tensor) -> Tensor:
    return torch.from_numpy(numbers).to(like.device)
