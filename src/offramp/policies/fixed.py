"""The same depth for everybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offramp.core.stepper import ExitOutput, ExitPoint, ModelSpec
from offramp.errors import BadValue
from offramp.policies.policy import Memory, Policy
from offramp.policies.thresholds import count

__all__ = ["Layer", "Never"]


@dataclass(frozen=True)
class Layer(Policy):
    """Leave at a fixed layer: a static model of that depth."""

    name: ClassVar[str] = "layer"
    example: ClassVar[str] = "layer:6"
    is_static: ClassVar[bool] = True
    layer: int

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """From the full depth to the first exit."""
        return [cls(point.layer) for point in reversed(model_spec.exits)]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer", count(self.name, "layer", self.layer, least=0))

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Everybody leaves at that layer."""
        return torch.full((len(said.logits),), said.layer == self.layer, device=said.logits.device), {}

    def listens(self, point: ExitPoint) -> bool:
        """Only to the exit on that layer, not to an untrained ramp beside it."""
        return point.layer == self.layer and not point.is_ramp

    def check(self, model_spec: ModelSpec) -> None:
        """Refuse a layer without an exit."""
        layers = sorted({point.layer for point in model_spec.exits})
        if self.layer not in layers:
            raise BadValue(f"No exit sits on layer {self.layer}; this model's exits are on {_listed(layers)}.")


@dataclass(frozen=True)
class Never(Policy):
    """Nobody leaves before the last exit: the full model."""

    name: ClassVar[str] = "never"
    title: ClassVar[str] = "no early exits"
    example: ClassVar[str] = "never"
    is_static: ClassVar[bool] = True

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Nobody leaves."""
        return torch.zeros(len(said.logits), dtype=torch.bool, device=said.logits.device), {}

    def listens(self, point: ExitPoint) -> bool:
        """To no exit but the last, which always answers."""
        return False


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(str(layer) for layer in layers)
