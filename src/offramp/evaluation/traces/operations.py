"""Floating-point operations of a row, by its length and the exit that it reaches: what torch really multiplies.

Matrix products (a multiply-add is two operations), heads of every exit on the way included, padding not: a row is
counted at its own length. They follow from the config alone, so a model without weights is run once per length, under
torch's own counter; since every product is at most quadratic in the length, three lengths give the formula and a
fourth checks it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from offramp.core.batch import Batch
from offramp.model.adaptive import AdaptiveModel
from offramp.model.config import AdaptiveConfig
from offramp.originals.width.counting import blocks_of

__all__ = ["Operations", "count_operations", "count_parameters", "saved_by_width"]

LENGTHS = (4, 8, 12, 16)


@dataclass(frozen=True)
class Operations:
    """Three coefficients per exit: constant, times the length, times its square."""

    spent: NDArray[np.float64]  # (exits, 3), up to the exit, every exit on the way asked
    head: NDArray[np.float64]  # (exits, 3), of that the exit's own head

    def at(self, lengths: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Both for rows of these lengths, (rows, exits)."""
        powers = np.asarray(lengths, dtype=np.float64)[:, None] ** np.arange(3)
        return powers @ self.spent.T, powers @ self.head.T


def count_operations(config: AdaptiveConfig) -> Operations:
    """Count a model's operations."""
    longest = config.family.max_length(config.backbone)
    lengths = [min(length, longest) for length in LENGTHS]
    if len(set(lengths)) < len(LENGTHS):
        lengths = list(range(1, len(LENGTHS) + 1))
    model = _without_weights(config)
    counts = np.array([_count(model, length) for length in lengths], dtype=np.float64)  # (lengths, 2, exits)
    return Operations(_quadratic(lengths, counts[:, 0]), _quadratic(lengths, counts[:, 1]))


def saved_by_width(config: AdaptiveConfig, lengths: NDArray[Any], kept: NDArray[Any]) -> NDArray[np.float64]:
    """What rows leave out up to each exit, (rows, exits): their pruned heads and channels less what the gates cost."""
    blocks = blocks_of(config, "exact")
    length = np.asarray(lengths, dtype=np.float64)[:, None]
    heads, channels = blocks.heads - kept[..., 0], blocks.channels - kept[..., 1]  # (rows, layers)
    each = heads * blocks.head(length) + channels * blocks.channel(length)
    each -= blocks.head_predictor + blocks.channel_predictor
    before = np.concatenate([np.zeros((len(each), 1)), np.cumsum(each, axis=1)], axis=1)  # up to layer 0, 1, …
    saved: NDArray[np.float64] = before[:, [point.layer for point in config.exit_points]]
    return saved


def count_parameters(config: AdaptiveConfig) -> int:
    """How many weights a model has."""
    return sum(value.numel() for value in _without_weights(config).parameters())


def _without_weights(config: AdaptiveConfig) -> AdaptiveModel:
    with torch.device("meta"):
        model: AdaptiveModel = AdaptiveModel(copy.deepcopy(config)).eval()
    return model


def _quadratic(lengths: list[int], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The coefficients per exit."""
    powers = np.array(lengths, dtype=np.float64)[:, None] ** np.arange(3)
    coefficients = np.linalg.solve(powers[:3], counts[:3])
    if not np.allclose(powers[3] @ coefficients, counts[3], rtol=1e-9):
        raise AssertionError("the operations of this family are not quadratic in the length")
    return np.round(coefficients.T, 6)


def _count(model: AdaptiveModel, length: int) -> list[list[int]]:
    """One row's operations up to each exit, and those of the exit's head."""
    batch = Batch.of_tensors(torch.full((1, length), 0, device="meta"))
    stepper, family = model.stepper, model.config.family
    spent, heads = [], []
    # the counter does not know the fused attention of CPUs, so attention is taken apart; and it fails without gradients
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        state = stepper.embed(batch)
        for point in stepper.exits:
            state = family.step(model.backbone, state, point.layer)  # at full width, whatever the gates
            before = counter.get_total_flops()
            state, _ = stepper.advance(state, point)  # the layers are behind it: the head alone
            spent.append(counter.get_total_flops())
            heads.append(spent[-1] - before)
    return [spent, heads]
