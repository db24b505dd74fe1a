"""A backbone and its exits as a stepper, in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from offramp.backbones import Family, Inside
from offramp.exits import Exits
from offramp.gradients import scale_gradient
from offramp.stepper import Batch, ExitPoint, Problem, Rows, Said

__all__ = ["TorchStepper"]


@dataclass(frozen=True)
class TorchStepper:
    """The seam over PyTorch modules: the family steps the encoder, the heads answer.

    With `equilibrium` (ElasticBERT's training) every layer gets the mean, not the sum, of the gradients of the exits
    behind it; the values are the same.
    """

    family: Family
    encoder: nn.Module
    modules: Exits
    problem: Problem
    equilibrium: bool = False

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """From shallow to deep."""
        return self.modules.points

    def embed(self, batch: Batch) -> Inside:
        """Embed a batch, its padding cut to the longest row."""
        return self.family.start(self.encoder, batch)

    def advance(self, state: Inside, point: ExitPoint) -> tuple[Inside, Said]:
        """Run the layers up to the exit and let its head answer."""
        state = self.family.step(self.encoder, state, point.layer)
        deeper = len(self.exits) - point.number
        if self.equilibrium:
            state = replace(state, hidden=scale_gradient(state.hidden, 1 / (deeper + 1)))
        head = self.modules.at(point)
        shared = self.modules["shared"] if self.modules.shares_pooler[point.number - 1] else None
        features = head.features(state, shared)
        uncertainty = None
        if "lte" in self.modules:
            # on the last layer BERxiT's LTE reads the ramp's pooler
            judged = features if head.ramp is None else head.ramp.features(state)
            uncertainty = torch.sigmoid(self.modules["lte"](judged)).squeeze(-1)
        said = Said(point.number, point.layer, self.problem, head(features), uncertainty)
        if self.equilibrium:
            state = replace(state, hidden=scale_gradient(state.hidden, deeper))
        return state, said

    def keep(self, state: Inside, rows: Rows) -> Inside:
        """Go on with these rows, cut to the longest of them."""
        return self.family.keep(state, rows)
