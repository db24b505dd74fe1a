"""The seam: what the loop, the policies and the trace know of a model.

A stepper is a backbone with its exits on one backend. It embeds a batch, advances it to an exit, keeps some of its
rows, and joins batches that stand at the same exit. What an exit answered is a `ExitOutput`; nobody above sees hidden states.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from offramp.answers import AnswerType

__all__ = ["Batch", "ExitOutput", "ExitPoint", "Judge", "Positions", "Shape", "Stepper", "points_on"]

Batch = Mapping[str, Tensor]
"""input_ids and attention_mask (rows, length), token_type_ids where the family has them."""

Positions = NDArray[np.int64]
"""Positions of rows in a batch, ascending; on the host, where decisions about rows are made."""

Judge = tuple[tuple[float, ...], tuple[float, ...]]
"""Offsets and slopes of the policy `risk`, one of each per early exit."""

State = TypeVar("State")


@dataclass(frozen=True)
class ExitPoint:
    """A place where rows may leave: its number and the layer that it sits on, both from 1."""

    number: int
    layer: int
    is_ramp: bool = False  # a converted checkpoint's untrained head, before the last exit on the same layer


def points_on(layers: Sequence[int]) -> tuple[ExitPoint, ...]:
    """The exits on these layers, shallow to deep; of two on one layer the first is a ramp."""
    ramps = [layer == after for layer, after in itertools.pairwise([*layers, None])]
    return tuple(ExitPoint(i, layer, ramp) for i, (layer, ramp) in enumerate(zip(layers, ramps, strict=True), 1))


@dataclass(frozen=True)
class ExitOutput:
    """What one exit answered for the rows that reached it."""

    exit: int  # its number, from 1
    layer: int  # the layer that it sits on, from 1
    answer_type: AnswerType
    logits: Tensor  # (rows, classes); of spans their summary
    uncertainty: Tensor | None = None  # (rows,), LTE's estimate that the exit is wrong
    kept: Tensor | None = None  # (rows, layers so far, 2), with gates: the heads and channels that each row ran
    tokens: Tensor | None = None  # (rows, tokens, 2), of spans: what `logits` are a summary of

    @property
    def raw(self) -> Tensor:
        """What a loss takes: the logits, of spans every token's."""
        return self.logits if self.tokens is None else self.tokens


@dataclass(frozen=True)
class Shape:
    """What a policy has to know of a model before it can serve it."""

    answer_type: AnswerType
    classes: int
    exits: tuple[ExitPoint, ...]
    lte: bool = False
    faithful: bool = False
    judge: Judge | None = None  # of the policy `risk`


class Stepper(Protocol[State]):
    """A backbone with its exits: embed, advance, keep, join."""

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """From shallow to deep; the last one is the full model."""
        ...

    def embed(self, batch: Batch) -> State:
        """Start a batch."""
        ...

    def advance(self, state: State, point: ExitPoint) -> tuple[State, ExitOutput]:
        """Run the layers up to `point` and ask its exit."""
        ...

    def keep(self, state: State, rows: Positions) -> State:
        """Go on with these of the state's rows."""
        ...

    def join(self, states: Sequence[State]) -> State:
        """Go on with the rows of several states that stand at the same exit, one after the other."""
        ...
