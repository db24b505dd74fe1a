"""A stepper that reads what the exits said once: the loop's answers without the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from offramp.stepper import Batch, ExitPoint, Rows, Said

__all__ = ["Replay"]


@dataclass(frozen=True)
class Replay:
    """Every exit's answer for the same rows, from shallow to deep, as a stepper."""

    said: Sequence[Said]

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """The exits that were recorded."""
        return tuple(ExitPoint(one.exit, one.layer) for one in self.said)

    def embed(self, batch: Batch) -> Tensor:
        """All recorded rows; the batch is not looked at."""
        first = self.said[0].logits
        return torch.arange(len(first), device=first.device)

    def advance(self, state: Tensor, point: ExitPoint) -> tuple[Tensor, Said]:
        """What that exit said about the rows that are left."""
        one = self.said[point.number - 1]
        sure = None if one.uncertainty is None else one.uncertainty.index_select(0, state)
        return state, replace(one, logits=one.logits.index_select(0, state), uncertainty=sure)

    def keep(self, state: Tensor, rows: Rows) -> Tensor:
        """Go on with these rows."""
        return state.index_select(0, torch.from_numpy(rows).to(state.device))
