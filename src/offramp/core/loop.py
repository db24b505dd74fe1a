"""The only place where rows leave.

A flight is what is still inside: `start` embeds a batch, `step` takes it to an exit, lets some rows go and keeps the
rest, `run` repeats that. Flights that stand at the same exit may be joined; whoever does it changes nothing but floats'
last digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from offramp.answers.span import LOW
from offramp.core.stepper import Batch, ExitOutput, ExitPoint, Positions, Stepper
from offramp.errors import BadValue
from offramp.policies import Memory, Policy

__all__ = [
    "ActiveRows",
    "BatchResult",
    "ExitedRows",
    "collect",
    "every_exit",
    "join",
    "leaving",
    "run",
    "start",
    "step",
    "within_budget",
]

State = TypeVar("State")


@dataclass(frozen=True)
class BatchResult:
    """Where each row of a batch left, and its answer there, in the batch's order."""

    logits: Tensor  # (rows, classes)
    exit: Tensor  # (rows,), the exit's number, from 1
    layer: Tensor  # (rows,), the layer that the exit sits on, from 1
    tokens: Tensor | None = None  # (rows, tokens, 2), of spans: the logits of every token there


@dataclass(frozen=True)
class ActiveRows(Generic[State]):
    """Rows that are still inside, after the exits that they have passed."""

    state: State
    rows: Positions | None = None  # the caller's numbers of these rows; None: 0, 1, … as in the batch
    memory: Memory | None = None  # what the policy remembers of them
    passed: int = 0  # the number of the last exit that was asked


@dataclass(frozen=True)
class ExitedRows:
    """Rows that left together."""

    rows: Positions | None
    said: ExitOutput


def within_budget(exits: Sequence[ExitPoint], max_layers: int | None) -> tuple[ExitPoint, ...]:
    """The exits that a row may use when it may run at most `max_layers` layers."""
    if max_layers is None:
        return tuple(exits)
    fitting = tuple(point for point in exits if point.layer <= max_layers)
    if not fitting:
        raise BadValue(f"max_layers is {max_layers}, but the first exit sits on layer {exits[0].layer}.")
    return fitting


def start(stepper: Stepper[State], batch: Batch, rows: Positions | None = None) -> ActiveRows[State]:
    """Embed a batch; `rows` are the numbers that its answers will have (0, 1, …)."""
    return ActiveRows(stepper.embed(batch), rows)


def step(
    stepper: Stepper[State], flight: ActiveRows[State], point: ExitPoint, policy: Policy, is_last: bool = False
) -> tuple[ActiveRows[State] | None, ExitedRows | None]:
    """Take a flight to an exit: what is still inside (None: nobody), and who left there (None: nobody).

    At the last exit everybody leaves and the policy is not asked. The rows that stay are compacted only if somebody
    left.
    """
    state, said = stepper.advance(flight.state, point)
    if is_last:
        return None, ExitedRows(flight.rows, said)
    leaves, memory = policy.step(said, flight.memory)
    decided = leaves.numpy(force=True)  # the one place where the host waits
    stay = np.flatnonzero(~decided)
    if len(stay) == len(decided):
        return ActiveRows(state, flight.rows, memory, point.number), None
    if len(stay) == 0:
        return None, ExitedRows(flight.rows, said)
    leave = np.flatnonzero(decided)
    gone = _tensor(leave, said.logits)
    tokens = None if said.tokens is None else said.tokens.index_select(0, gone)
    left = replace(said, logits=said.logits.index_select(0, gone), uncertainty=None, kept=None, tokens=tokens)
    landed = ExitedRows(_numbers(flight, leave), left)
    if memory:
        kept = _tensor(stay, leaves)
        memory = {key: value.index_select(0, kept) for key, value in memory.items()}
    return ActiveRows(stepper.keep(state, stay), _numbers(flight, stay), memory, point.number), landed


def join(stepper: Stepper[State], flights: Sequence[ActiveRows[State]]) -> ActiveRows[State]:
    """Several flights at the same exit as one; their rows have numbers, which stay theirs."""
    first, *others = flights
    if not others:
        return first
    if any(flight.passed != first.passed or flight.rows is None for flight in flights):
        raise AssertionError("flights are joined at the same exit, and their rows have numbers")
    memory = None
    if first.memory is not None:
        memories = [flight.memory or {} for flight in flights]
        memory = {key: torch.cat([one[key] for one in memories]) for key in first.memory}
    rows = np.concatenate([flight.rows for flight in flights if flight.rows is not None])
    return ActiveRows(stepper.join([flight.state for flight in flights]), rows, memory, first.passed)


def run(stepper: Stepper[State], batch: Batch, policy: Policy, max_layers: int | None = None) -> BatchResult:
    """Take a batch through the exits; after each, rows that the policy lets go leave with its answer."""
    return collect(list(leaving(stepper, batch, policy, max_layers)))


def leaving(
    stepper: Stepper[State], batch: Batch, policy: Policy, max_layers: int | None = None
) -> Iterator[ExitedRows]:
    """The same, group by group, as they leave; the others have not gone on yet."""
    points = within_budget(stepper.exits, max_layers)
    flight: ActiveRows[State] | None = start(stepper, batch)
    for point in points:
        is_last = point is points[-1]
        if flight is None:
            break
        if is_last or policy.listens(point):
            flight, group = step(stepper, flight, point, policy, is_last)
            if group is not None:
                yield group


def every_exit(stepper: Stepper[State], batch: Batch) -> tuple[ExitOutput, ...]:
    """What every exit says about every row: a full pass in which nobody leaves."""
    state = stepper.embed(batch)
    every = []
    for point in stepper.exits:
        state, said = stepper.advance(state, point)
        every.append(said)
    return tuple(every)


def collect(landed: Sequence[ExitedRows]) -> BatchResult:
    """Groups that left together, back in the order of their rows' numbers (0, 1, …)."""
    if len(landed) == 1 and landed[0].rows is None:
        said, rows = landed[0].said, len(landed[0].said.logits)
        exits, layers = np.full(rows, said.exit), np.full(rows, said.layer)
        return BatchResult(said.logits, _tensor(exits, said.logits), _tensor(layers, said.logits), said.tokens)
    order = np.concatenate([group.rows for group in landed if group.rows is not None])
    sizes = [len(group.said.logits) for group in landed]
    left_by = np.empty((2, len(order)), dtype=np.int64)
    places = [[group.said.exit for group in landed], [group.said.layer for group in landed]]
    left_by[:, order] = np.repeat(places, sizes, axis=1)
    logits = torch.cat([group.said.logits for group in landed])
    back = _tensor(order, logits)
    logits = torch.empty_like(logits).index_copy_(0, back, logits)
    each = [group.said.tokens for group in landed if group.said.tokens is not None]
    tokens = None
    if each:  # rows that stayed were cut to the longest of them
        longest = max(one.shape[1] for one in each)
        padded = [torch.nn.functional.pad(one, (0, 0, 0, longest - one.shape[1]), value=LOW) for one in each]
        tokens = torch.empty_like(torch.cat(padded)).index_copy_(0, back, torch.cat(padded))
    return BatchResult(logits, _tensor(left_by[0], logits), _tensor(left_by[1], logits), tokens)


def _numbers(flight: ActiveRows[State], places: Positions) -> Positions:
    return places if flight.rows is None else flight.rows[places]


def _tensor(numbers: Positions, like: Tensor) -> Tensor:
    return torch.from_numpy(numbers).to(like.device)
