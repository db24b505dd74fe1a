"""The seam: what the loop, the policies and the traces know of a model.

A stepper is an encoder with its exits on one runtime. It embeds a batch, advances it to an exit, and keeps some of its
rows. What an exit answered is an `ExitOutput`; nothing above sees hidden states.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from offramp.answers import AnswerType
from offramp.core.batch import Batch

__all__ = ["HIDDEN", "ExitOutput", "ExitPoint", "ModelSpec", "Positions", "RiskParameters", "Stepper", "points_on"]

Positions = NDArray[np.int64]
"""Positions of rows in a batch, ascending; on the host, where decisions about rows are made."""

RiskParameters = tuple[tuple[float, ...], tuple[float, ...]]
"""Offsets and slopes of the policy `risk`, one of each per early exit."""

HIDDEN = -1e4  # the logit of a token that is padding

State = TypeVar("State")


@dataclass(frozen=True)
class ExitPoint:
    """A place where rows may exit: its number, from 1, and the layer that it sits on.

    Layers are counted from 1; an exit on layer 0 reads the embeddings, before any layer has run.
    """

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
    layer: int  # the layer that it sits on
    answer_type: AnswerType
    logits: Tensor  # (rows, columns); where every token is answered, a summary of that
    uncertainty: Tensor | None = None  # (rows,), LTE's estimate that the exit is wrong
    kept: Tensor | None = None  # (rows, layers so far, 2), with gates: the heads and channels that each row ran
    tokens: Tensor | None = None  # (rows, tokens, outputs), what `logits` are a summary of
    group: Tensor | None = None  # (rows,), the example that each row belongs to, for policies that look at groups

    @property
    def raw(self) -> Tensor:
        """What a loss takes: the logits, or every token's."""
        return self.logits if self.tokens is None else self.tokens

    def take(self, rows: Tensor) -> ExitOutput:
        """The same for some of the rows."""

        def some(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.index_select(0, rows)

        return replace(
            self,
            logits=self.logits.index_select(0, rows),
            uncertainty=some(self.uncertainty),
            kept=some(self.kept),
            tokens=some(self.tokens),
            group=some(self.group),
        )


@dataclass(frozen=True)
class ModelSpec:
    """What a policy has to know of a model before it can serve it."""

    answer_type: AnswerType
    classes: int
    exits: tuple[ExitPoint, ...]
    lte: bool = False
    faithful: bool = False
    risk_model: RiskParameters | None = None  # of the policy `risk`


class Stepper(Protocol[State]):
    """An encoder with its exits: embed, advance, keep."""

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
