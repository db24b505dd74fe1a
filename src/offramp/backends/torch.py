"""A backbone and its exits as a stepper, in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offramp.backbones import Family, Inside
from offramp.exits import Exits
from offramp.stepper import Batch, ExitPoint, Problem, Said

__all__ = ["TorchStepper"]


@dataclass(frozen=True)
class TorchStepper:
    """The seam over PyTorch modules: the family steps the encoder, the heads answer.

    With `ramp_answers`, the last layer's ramp stands before the classifier as an exit of its own on the same
    layer: it may let rows go first, as the originals' never-trained last highway did.
    """

    family: Family
    encoder: nn.Module
    modules: Exits
    layers: Sequence[int]  # the layers that have an exit
    problem: Problem
    ramp_answers: bool = False

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """One per head; with `ramp_answers`, the ramp before the last."""
        layers = list(self.layers)
        if self.ramp_answers:
            layers.append(layers[-1])
        return tuple(ExitPoint(number, layer) for number, layer in enumerate(layers, 1))

    def embed(self, batch: Batch) -> Inside:
        """Embed a batch, its padding cut to the longest row."""
        return self.family.start(self.encoder, batch)

    def advance(self, state: Inside, point: ExitPoint) -> tuple[Inside, Said]:
        """Run the layers up to the exit and let its head answer."""
        state = self.family.step(self.encoder, state, point.layer)
        head = self.modules.head(point.layer)
        if head.ramp is not None and self.ramp_answers and point.number == len(self.layers):
            head = head.ramp
        shares = self.modules.shares_pooler[min(point.number, len(self.layers)) - 1]
        features = head.features(state, self.modules["shared"] if shares else None)
        # BERxiT's LTE reads the ramp's pooler on the last layer
        judged = features if head.ramp is None else head.ramp.features(state)
        return state, Said(point.number, point.layer, self.problem, head(features), self._uncertainty(judged))

    def _uncertainty(self, features: Tensor) -> Tensor | None:
        if "lte" not in self.modules:
            return None
        return torch.sigmoid(self.modules["lte"](features)).squeeze(-1)

    def keep(self, state: Inside, rows: Tensor) -> Inside:
        """Go on with these rows, cut to the longest of them."""
        return self.family.keep(state, rows)
