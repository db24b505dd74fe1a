"""Floating-point operations of a row, by its length and the exit it leaves at: what torch really multiplies.

Matrix products (a multiply-add is two operations), heads of every exit on the way included, padding not: a row is
counted at its own length. Counted once per model with torch's own counter at four lengths; since every product is at
most quadratic in the length, three of them give the formula and the fourth checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from offramp.model import AdaptiveModel
from offramp.stepper import ExitPoint

__all__ = ["Flops", "count_flops"]

LENGTHS = (4, 8, 12, 16)


@dataclass(frozen=True)
class Flops:
    """Three coefficients per exit: constant, times the length, times its square."""

    passing: NDArray[np.float64]  # (exits, 3), every exit on the way asked
    alone: NDArray[np.float64]  # the same with that exit alone asked: a static model

    def at(self, lengths: NDArray[Any], exits: NDArray[Any], alone: bool = False) -> NDArray[np.float64]:
        """Of rows of these lengths that leave at these exits, numbered from 1."""
        powers = np.asarray(lengths, dtype=np.float64)[:, None] ** np.arange(3)
        return np.einsum("rp,rp->r", (self.alone if alone else self.passing)[np.asarray(exits) - 1], powers)


def count_flops(model: AdaptiveModel) -> Flops:
    """Count a model's operations."""
    longest = model.config.family.max_length(model.config.backbone)
    lengths = [min(length, longest) for length in LENGTHS]
    if len(set(lengths)) < len(LENGTHS):
        lengths = list(range(1, len(LENGTHS) + 1))
    exits = model.stepper.exits
    passing = np.array([_count(model, length, exits) for length in lengths], dtype=np.float64)  # (lengths, exits)
    alone = np.array([[_count(model, length, [point])[0] for point in exits] for length in lengths], dtype=np.float64)
    return Flops(*(_quadratic(lengths, counts) for counts in (passing, alone)))


def _quadratic(lengths: list[int], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The coefficients per exit."""
    powers = np.array(lengths, dtype=np.float64)[:, None] ** np.arange(3)
    found = np.linalg.solve(powers[:3], counts[:3])
    if not np.allclose(powers[3] @ found, counts[3], rtol=1e-9):
        raise AssertionError("the operations of this family are not quadratic in the length")
    return np.round(found.T, 6)


def _count(model: AdaptiveModel, length: int, exits: Sequence[ExitPoint]) -> list[int]:
    """Operations of one row up to each of some exits."""
    batch = {"input_ids": torch.full((1, length), model.config.backbone.vocab_size - 1, device=model.device)}
    stepper = model.stepper
    found = []
    was_training = model.training
    model.eval()
    # the counter does not know the fused attention of CPUs, so attention is taken apart; and it fails without gradients
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        state = stepper.embed(batch)
        for point in exits:
            state, _ = stepper.advance(state, point)
            found.append(counter.get_total_flops())
    model.train(was_training)
    return found
