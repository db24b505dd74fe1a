"""The only place where rows leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from offramp.errors import BadValue
from offramp.policies import Memory, Policy
from offramp.stepper import Batch, ExitPoint, Rows, Said, Stepper

__all__ = ["Left", "every_exit", "run", "within_budget"]

State = TypeVar("State")


@dataclass(frozen=True)
class Left:
    """Where each row of a batch left, and its answer there, in the batch's order."""

    logits: Tensor  # (rows, classes)
    exit: Tensor  # (rows,), the exit's number, from 1
    layer: Tensor  # (rows,), the layer that the exit sits on, from 1


def within_budget(exits: Sequence[ExitPoint], max_layers: int | None) -> tuple[ExitPoint, ...]:
    """The exits that a row may use when it may run at most `max_layers` layers."""
    if max_layers is None:
        return tuple(exits)
    fitting = tuple(point for point in exits if point.layer <= max_layers)
    if not fitting:
        raise BadValue(f"max_layers is {max_layers}, but the first exit sits on layer {exits[0].layer}.")
    return fitting


def run(stepper: Stepper[State], batch: Batch, policy: Policy, max_layers: int | None = None) -> Left:
    """Take a batch through the exits; after each, rows that the policy lets go leave with its answer.

    One decision per exit for the whole batch. The rows that stay are compacted only if somebody left.
    """
    *early, last = within_budget(stepper.exits, max_layers)
    state = stepper.embed(batch)
    inside: Rows | None = None  # the batch's rows that are still inside; None: all of them
    gone: list[tuple[Rows | None, Said]] = []
    memory: Memory | None = None
    for point in early:
        if not policy.listens(point):
            continue
        state, said = stepper.advance(state, point)
        leaves, memory = policy.step(said, memory)
        decided = leaves.numpy(force=True)  # the one place where the host waits
        stay = np.flatnonzero(~decided)
        if len(stay) == len(decided):
            continue
        if len(stay) == 0:
            return _collect([*gone, (inside, said)])
        leave = np.flatnonzero(decided)
        gone.append((_pick(inside, leave), _rows_of(said, leave)))
        inside = _pick(inside, stay)
        if memory:
            kept = _tensor(stay, leaves)
            memory = {key: value.index_select(0, kept) for key, value in memory.items()}
        state = stepper.keep(state, stay)
    state, said = stepper.advance(state, last)
    return _collect([*gone, (inside, said)])


def every_exit(stepper: Stepper[State], batch: Batch) -> tuple[Said, ...]:
    """What every exit says about every row: a full pass in which nobody leaves."""
    state = stepper.embed(batch)
    said = []
    for point in stepper.exits:
        state, one = stepper.advance(state, point)
        said.append(one)
    return tuple(said)


def _pick(inside: Rows | None, rows: Rows) -> Rows:
    return rows if inside is None else inside[rows]


def _rows_of(said: Said, rows: Rows) -> Said:
    return Said(said.exit, said.layer, said.problem, said.logits.index_select(0, _tensor(rows, said.logits)))


def _collect(gone: list[tuple[Rows | None, Said]]) -> Left:
    """The groups that left together, back in the batch's order."""
    if len(gone) == 1:
        (_, said), rows = gone[0], len(gone[0][1].logits)
        exits, layers = np.full(rows, said.exit), np.full(rows, said.layer)
        return Left(said.logits, *(_tensor(one, said.logits) for one in (exits, layers)))
    order = np.concatenate([rows for rows, _ in gone if rows is not None])
    sizes = [len(said.logits) for _, said in gone]
    left_by = np.empty((2, len(order)), dtype=np.int64)
    left_by[:, order] = np.repeat([[said.exit for _, said in gone], [said.layer for _, said in gone]], sizes, axis=1)
    logits = torch.cat([said.logits for _, said in gone])
    logits = torch.empty_like(logits).index_copy_(0, _tensor(order, logits), logits)
    return Left(logits, _tensor(left_by[0], logits), _tensor(left_by[1], logits))


def _tensor(numbers: Rows, like: Tensor) -> Tensor:
    return torch.from_numpy(numbers).to(like.device)
