"""A stepper that reads what the exits said once: the loop's answers without the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from offramp.core.stepper import Batch, ExitOutput, ExitPoint, Positions, points_on

__all__ = ["Replay"]


@dataclass(frozen=True)
class Replay:
    """Every exit's answer for the same rows, from shallow to deep, as a stepper."""

    said: Sequence[ExitOutput]

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """The exits that were recorded."""
        return points_on([said.layer for said in self.said])

    def embed(self, batch: Batch) -> Tensor:
        """All recorded rows; the batch is not looked at."""
        first = self.said[0].logits
        return torch.arange(len(first), device=first.device)

    def advance(self, state: Tensor, point: ExitPoint) -> tuple[Tensor, ExitOutput]:
        """What that exit said about the rows that are left."""
        said = self.said[point.number - 1]
        uncertainty = None if said.uncertainty is None else said.uncertainty.index_select(0, state)
        tokens = None if said.tokens is None else said.tokens.index_select(0, state)
        return state, replace(said, logits=said.logits.index_select(0, state), uncertainty=uncertainty, tokens=tokens)

    def keep(self, state: Tensor, rows: Positions) -> Tensor:
        """Go on with these rows."""
        return state.index_select(0, torch.from_numpy(rows).to(state.device))

    def join(self, states: Sequence[Tensor]) -> Tensor:
        """Go on with all of them."""
        return torch.cat(list(states))
