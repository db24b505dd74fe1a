"""The interface between a model and the early-exit loop, the policies and the traces.

A stepper is an encoder with its exits on one runtime. It embeds a batch, advances it to an exit, and keeps a subset of
the rows. An exit returns an `ExitOutput`; hidden states stay inside the stepper.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from offramp.answers import AnswerType
from offramp.core.batch import Batch

__all__ = [
    "PADDING_LOGIT",
    "ExitOutput",
    "ExitPoint",
    "ModelSpec",
    "RiskParameters",
    "RowIndices",
    "Stepper",
    "exit_points_on",
]

RowIndices = NDArray[np.int64]
"""Row indices in a batch, ascending; on the CPU, where rows are selected."""

RiskParameters = tuple[tuple[float, ...], tuple[float, ...]]
"""Offsets and slopes of the policy `risk`, one per early exit."""

PADDING_LOGIT = -1e4  # the logit of padding tokens

State = TypeVar("State")


@dataclass(frozen=True)
class ExitPoint:
    """An exit: its number, counted from 1, and its layer.

    Layers are counted from 1; an exit on layer 0 reads the embeddings.
    """

    number: int
    layer: int
    is_ramp: bool = False  # a converted checkpoint's extra head on the last layer, before the final exit


def exit_points_on(layers: Sequence[int]) -> tuple[ExitPoint, ...]:
    """Return the exits on these layers, shallow to deep; of two exits on one layer the first is a ramp."""
    ramps = [layer == after for layer, after in itertools.pairwise([*layers, None])]
    return tuple(ExitPoint(i, layer, ramp) for i, (layer, ramp) in enumerate(zip(layers, ramps, strict=True), 1))


@dataclass(frozen=True)
class ExitOutput:
    """The output of one exit for the rows that reached it."""

    exit: int  # the exit's number, from 1
    layer: int  # the exit's layer
    answer_type: AnswerType
    logits: Tensor  # (rows, columns); for per-token answer types a summary of `tokens`
    uncertainty: Tensor | None = None  # (rows,), the learning-to-exit module's estimated probability of an error
    kept: Tensor | None = None  # (rows, layers so far, 2), with gates: number of heads and channels kept
    tokens: Tensor | None = None  # (rows, tokens, outputs), for per-token answer types
    group: Tensor | None = None  # (rows,), the example that each row belongs to, for policies with `sees_groups`

    @property
    def raw(self) -> Tensor:
        """The input of the loss: the logits of each token if there are any, else of each row."""
        return self.logits if self.tokens is None else self.tokens

    def take(self, rows: Tensor) -> ExitOutput:
        """Return the output for the given rows."""

        def select(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.index_select(0, rows)

        return replace(
            self,
            logits=self.logits.index_select(0, rows),
            uncertainty=select(self.uncertainty),
            kept=select(self.kept),
            tokens=select(self.tokens),
            group=select(self.group),
        )


@dataclass(frozen=True)
class ModelSpec:
    """The properties of a model that policies depend on."""

    answer_type: AnswerType
    classes: int
    exits: tuple[ExitPoint, ...]
    lte: bool = False
    faithful: bool = False
    risk_model: RiskParameters | None = None  # of the policy `risk`
    errors: tuple[float, ...] | None = None  # of the policy `top-k`: of the scores of each early exit
    options: Mapping[str, Any] | None = None  # of the answer type


class Stepper(Protocol[State]):
    """An encoder with its exits: embed, advance, keep."""

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """The exits from shallow to deep; the last is the full model."""
        ...

    def embed(self, batch: Batch) -> State:
        """Return the state of a batch before the first layer."""
        ...

    def advance(self, state: State, point: ExitPoint) -> tuple[State, ExitOutput]:
        """Run the layers up to `point`, then its exit head."""
        ...

    def keep(self, state: State, rows: RowIndices) -> State:
        """Return the state of the given rows."""
        ...
