"""RomeBERT's gradient regularization: the projection of conflicting gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Projection", "project"]


@dataclass(frozen=True)
class Projection:
    """Two combined gradients: the angle between them in degrees, and their norms before the projection."""

    angle: float
    reference: float
    projected: float


def project(first: Sequence[Tensor], second: Sequence[Tensor]) -> tuple[list[Tensor], Projection]:
    """Return first + second; if they conflict, second loses its component along first (RomeBERT's GR).

    One inner product over all tensors together: c = min(⟨a, b⟩ / ⟨a, a⟩, 0), a + b − c·a. The reference a is not
    changed.
    """
    inner = float(sum((a * b).sum().double() for a, b in zip(first, second, strict=True)))
    reference = math.sqrt(float(sum((a * a).sum().double() for a in first)))
    projected = math.sqrt(float(sum((b * b).sum().double() for b in second)))
    coefficient = min(inner / reference**2, 0.0) if reference > 0 else 0.0
    combined = [a + b - coefficient * a for a, b in zip(first, second, strict=True)]
    norms = reference * projected
    cosine = max(-1.0, min(1.0, inner / norms)) if norms > 0 else 0.0
    return combined, Projection(math.degrees(math.acos(cosine)), reference, projected)
