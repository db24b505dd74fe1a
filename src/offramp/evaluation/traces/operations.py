"""Count the floating-point operations of a row, by its length and exit.

Matrix products count (a multiply-add is two operations), with the heads of all earlier exits but without padding. The
count depends on the config only: a model without weights runs once per length under torch's FLOP counter. The count is
at most quadratic in the length, so three lengths give the formula and a fourth one checks it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from offramp.core.batch import Batch
from offramp.model.adaptive import AdaptiveModel
from offramp.model.config import AdaptiveConfig
from offramp.model.fingerprint import config_text
from offramp.originals.width.flops import layer_flops

__all__ = ["Operations", "count_operations", "count_parameters", "saved_by_width"]

LENGTHS = (4, 8, 12, 16)


@dataclass(frozen=True)
class Operations:
    """Coefficients of a quadratic polynomial in the length, per exit."""

    spent: NDArray[np.float64]  # (exits, 3), up to the exit, with all heads on the way
    head: NDArray[np.float64]  # (exits, 3), of the exit's head alone

    def at(self, lengths: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return total and head operations of rows of these lengths, both (rows, exits)."""
        powers = np.asarray(lengths, dtype=np.float64)[:, None] ** np.arange(3)
        return powers @ self.spent.T, powers @ self.head.T


def count_operations(config: AdaptiveConfig) -> Operations:
    """Count the operations of a model; counts are cached, because every recording needs them."""
    return _count_operations(_Counted(config_text(config), config))


@dataclass(frozen=True)
class _Counted:
    """A config that equals every other config with the same text."""

    text: str
    config: AdaptiveConfig = field(compare=False)


@lru_cache(maxsize=64)
def _count_operations(counted: _Counted) -> Operations:
    config = counted.config
    longest = config.family.max_length(config.backbone)
    lengths = [min(length, longest) for length in LENGTHS]
    if len(set(lengths)) < len(LENGTHS):
        lengths = list(range(1, len(LENGTHS) + 1))
    model = _without_weights(config)
    counts = np.array([_count(model, length) for length in lengths], dtype=np.float64)  # (lengths, 2, exits)
    return Operations(_quadratic(lengths, counts[:, 0]), _quadratic(lengths, counts[:, 1]))


def saved_by_width(config: AdaptiveConfig, lengths: NDArray[Any], kept: NDArray[Any]) -> NDArray[np.float64]:
    """Return the operations that pruning saves up to each exit, minus the cost of the gates, (rows, exits)."""
    blocks = layer_flops(config, "exact")
    length = np.asarray(lengths, dtype=np.float64)[:, None]
    heads, channels = blocks.heads - kept[..., 0], blocks.channels - kept[..., 1]  # (rows, layers)
    per_layer = heads * blocks.head(length) + channels * blocks.channel(length)
    per_layer -= blocks.head_predictor + blocks.channel_predictor
    cumulative = np.concatenate(
        [np.zeros((len(per_layer), 1)), np.cumsum(per_layer, axis=1)], axis=1
    )  # at layer 0, 1, …
    saved: NDArray[np.float64] = cumulative[:, [point.layer for point in config.exit_points]]
    return saved


def count_parameters(config: AdaptiveConfig) -> int:
    """Count the parameters of a model."""
    return sum(value.numel() for value in _without_weights(config).parameters())


def _without_weights(config: AdaptiveConfig) -> AdaptiveModel:
    with torch.device("meta"):
        model: AdaptiveModel = AdaptiveModel(copy.deepcopy(config)).eval()
    return model


def _quadratic(lengths: list[int], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients per exit."""
    powers = np.array(lengths, dtype=np.float64)[:, None] ** np.arange(3)
    coefficients = np.linalg.solve(powers[:3], counts[:3])
    if not np.allclose(powers[3] @ coefficients, counts[3], rtol=1e-9):
        raise AssertionError("The operations of this family are not quadratic in the length.")
    return np.round(coefficients.T, 6)


def _count(model: AdaptiveModel, length: int) -> list[list[int]]:
    """Return the operations of one row up to every exit, and those of the exit heads."""
    batch = Batch.from_tensors(torch.full((1, length), 0, device="meta"))
    stepper, family = model.stepper, model.config.family
    spent, heads = [], []
    # the counter does not support fused CPU attention, and needs gradients enabled
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        state = stepper.embed(batch)
        for point in stepper.exits:
            state = family.step(model.backbone, state, point.layer)  # at full width, ignoring gates
            before = counter.get_total_flops()
            state, _ = stepper.advance(state, point)  # runs the head only
            spent.append(counter.get_total_flops())
            heads.append(spent[-1] - before)
    return [spent, heads]
