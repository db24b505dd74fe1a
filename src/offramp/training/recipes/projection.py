"""RomeBERT's gradient regularisation: of two gradients that conflict, one gives way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Projection", "project"]


@dataclass(frozen=True)
class Projection:
    """Two gradients that were joined: the angle between them in degrees and their norms, before joining."""

    angle: float
    reference: float
    projected: float


def project(first: Sequence[Tensor], second: Sequence[Tensor]) -> tuple[list[Tensor], Projection]:
    """First + second, the second without its component along the first where the two conflict (RomeBERT's GR).

    One inner product over all tensors together: c = min(⟨a, b⟩ / ⟨a, a⟩, 0), a + b − c·a. The reference a is left
    as it is.
    """
    inner = float(sum((a * b).sum().double() for a, b in zip(first, second, strict=True)))
    reference = math.sqrt(float(sum((a * a).sum().double() for a in first)))
    projected = math.sqrt(float(sum((b * b).sum().double() for b in second)))
    along = min(inner / reference**2, 0.0) if reference > 0 else 0.0
    joined = [a + b - along * a for a, b in zip(first, second, strict=True)]
    lengths = reference * projected
    cosine = max(-1.0, min(1.0, inner / lengths)) if lengths > 0 else 0.0
    return joined, Projection(math.degrees(math.acos(cosine)), reference, projected)
