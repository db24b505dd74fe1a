"""The only place where rows leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from offramp.errors import BadValue
from offramp.policies import Memory, Policy
from offramp.stepper import Batch, ExitPoint, Said, Stepper

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
    inside: Tensor | None = None  # the batch's rows that are still inside; None: all of them
    gone: list[tuple[Tensor | None, Said]] = []
    memory: Memory | None = None
    for point in early:
        if not policy.listens(point):
            continue
        state, said = stepper.advance(state, point)
        leaves, memory = policy.step(said, memory)
        stay = leaves.logical_not().nonzero().squeeze(1)
        if len(stay) == len(leaves):
            continue
        if len(stay) == 0:
            return _collect([*gone, (inside, said)])
        leave = leaves.nonzero().squeeze(1)
        gone.append((_pick(inside, leave), _rows_of(said, leave)))
        inside = _pick(inside, stay)
        memory = {key: value.index_select(0, stay) for key, value in memory.items()}
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


def _pick(inside: Tensor | None, rows: Tensor) -> Tensor:
    return rows if inside is None else inside.index_select(0, rows)


def _rows_of(said: Said, rows: Tensor) -> Said:
    return Said(said.exit, said.layer, said.problem, said.logits.index_select(0, rows))


def _collect(gone: list[tuple[Tensor | None, Said]]) -> Left:
    logits = torch.cat([said.logits for _, said in gone]) if len(gone) > 1 else gone[0][1].logits
    sizes = [len(said.logits) for _, said in gone]
    left_by = torch.tensor([[said.exit for _, said in gone], [said.layer for _, said in gone]])
    left_by = left_by.repeat_interleave(torch.tensor(sizes), dim=1).to(logits.device)  # (2, rows)
    rows = [rows for rows, _ in gone if rows is not None]
    if rows:
        back = torch.cat(rows).argsort()  # where each of the caller's rows stands in the groups
        logits, left_by = logits.index_select(0, back), left_by.index_select(1, back)
    return Left(logits, left_by[0], left_by[1])
