"""A stepper that replays recorded exit outputs, without running the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offramp.core.batch import Batch
from offramp.core.stepper import ExitOutput, ExitPoint, RowIndices, exit_points_on

__all__ = ["Replay"]


@dataclass(frozen=True)
class Replay:
    """Recorded outputs of every exit for the same rows, from shallow to deep."""

    outputs: Sequence[ExitOutput]

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """The recorded exits."""
        return exit_points_on([output.layer for output in self.outputs])

    def embed(self, batch: Batch | None) -> Tensor:
        """Return the indices of all recorded rows; the batch is ignored."""
        first = self.outputs[0].logits
        return torch.arange(len(first), device=first.device)

    def advance(self, state: Tensor, point: ExitPoint) -> tuple[Tensor, ExitOutput]:
        """Return the recorded output of an exit for the given rows."""
        return state, self.outputs[point.number - 1].take(state)

    def keep(self, state: Tensor, rows: RowIndices) -> Tensor:
        """Return the indices of the given rows."""
        return state.index_select(0, torch.from_numpy(rows).to(state.device))
