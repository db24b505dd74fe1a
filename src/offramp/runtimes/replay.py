"""A stepper that reads what the exits said once: the loop's answers without the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offramp.core.batch import Batch
from offramp.core.stepper import ExitOutput, ExitPoint, Positions, points_on

__all__ = ["Replay"]


@dataclass(frozen=True)
class Replay:
    """Every exit's answer for the same rows, from shallow to deep, as a stepper."""

    outputs: Sequence[ExitOutput]

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """The exits that were recorded."""
        return points_on([output.layer for output in self.outputs])

    def embed(self, batch: Batch | None) -> Tensor:
        """All recorded rows; the batch is not looked at."""
        first = self.outputs[0].logits
        return torch.arange(len(first), device=first.device)

    def advance(self, state: Tensor, point: ExitPoint) -> tuple[Tensor, ExitOutput]:
        """What that exit said about the rows that are left."""
        return state, self.outputs[point.number - 1].take(state)

    def keep(self, state: Tensor, rows: Positions) -> Tensor:
        """Go on with these rows."""
        return state.index_select(0, torch.from_numpy(rows).to(state.device))
