"""Policies with the same exit for all rows."""

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
    """Exit at a fixed layer: a static model of that depth.

    Attributes:
        layer: layer of the exit.
    """

    name: ClassVar[str] = "layer"
    example: ClassVar[str] = "layer:6"
    is_static: ClassVar[bool] = True
    layer: int

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Return all exit layers, from the last to the first."""
        return [cls(point.layer) for point in reversed(model_spec.exits)]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer", count(self.name, "layer", self.layer, minimum=0))

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Let all rows exit at the layer."""
        return torch.full((len(output.logits),), output.layer == self.layer, device=output.logits.device), {}

    def needs_exit(self, point: ExitPoint) -> bool:
        """Return true for the exit on the layer, but not for an untrained ramp on it."""
        return point.layer == self.layer and not point.is_ramp

    def check(self, model_spec: ModelSpec) -> None:
        """Raise if the layer has no exit."""
        layers = sorted({point.layer for point in model_spec.exits})
        if self.layer not in layers:
            raise BadValue(f"Layer {self.layer} has no exit; the exits of this model are on layers {_join(layers)}.")


@dataclass(frozen=True)
class Never(Policy):
    """No row exits before the last exit: the full model."""

    name: ClassVar[str] = "never"
    title: ClassVar[str] = "no early exits"
    example: ClassVar[str] = "never"
    is_static: ClassVar[bool] = True

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Let no row exit."""
        return torch.zeros(len(output.logits), dtype=torch.bool, device=output.logits.device), {}

    def needs_exit(self, point: ExitPoint) -> bool:
        """Return false: only the last exit is needed, and it always runs."""
        return False


def _join(layers: Sequence[int]) -> str:
    return ", ".join(str(layer) for layer in layers)
