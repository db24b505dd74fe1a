"""Operations of layers with gates, as EBERT counts them and exactly; a multiply-add counts two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from offramp.originals.width.gates import INNER

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = ["Blocks", "Report", "Terms", "blocks_of", "report", "terms"]

GIGA = 1024**3  # what the original calls a GFLOP


@dataclass(frozen=True)
class Blocks:
    """What one layer is made of; a length may be a number or a tensor of the rows' lengths."""

    layers: int
    heads: int
    channels: int
    size: int
    head_size: int
    head_gates: int
    channel_gates: int

    def head(self, length: Any) -> Any:
        """One head: query, key, value, scores, their sum, and its part of the output projection."""
        return 8 * length * self.head_size * self.size + 4 * length**2 * self.head_size

    def channel(self, length: Any) -> Any:
        """One channel of the feed-forward block."""
        return 4 * length * self.size

    @property
    def head_predictor(self) -> int:
        """A layer's gate for heads."""
        return 2 * INNER * (self.size + self.head_gates)

    @property
    def channel_predictor(self) -> int:
        """A layer's gate for channels."""
        return 2 * INNER * (self.size + self.channel_gates)

    def full(self, length: Any) -> Any:
        """All layers with all heads and channels, without gates."""
        return self.layers * (self.heads * self.head(length) + self.channels * self.channel(length))


def blocks_of(config: AdaptiveConfig, flops: str | None = None) -> Blocks:
    """A model's blocks; `original` takes every head for one of 64 and counts twelve of them in its gate."""
    width = config.gating
    original = (flops or (width.flops if width else "exact")) == "original"
    heads, channels, size = config.num_heads, config.num_channels, config.hidden_size
    groups, block = (width.head_group, width.block) if width else (1, 1)
    return Blocks(
        config.num_layers,
        heads,
        channels,
        size,
        64 if original else size // heads,
        12 if original else heads // groups,
        channels // block,
    )


@dataclass(frozen=True)
class Terms:
    """What pulls gates to their target, for a batch; the three terms, and what they are made of."""

    flops: Tensor
    heads: Tensor
    channels: Tensor
    sparsity: Tensor  # the share of operations saved, gates counted
    dense: Tensor | float
    sparse: Tensor

    @property
    def total(self) -> Tensor:
        """Each layer's own terms weigh five times the overall one."""
        return self.flops + 5 * self.heads + 5 * self.channels


def terms(kept: Tensor, lengths: Any, blocks: Blocks, prune: float) -> Terms:
    """Of the heads and channels (rows, layers, 2) that rows kept, straight through; lengths: one, or the rows'."""
    heads, channels = kept[..., 0], kept[..., 1]  # (rows, layers)
    gates = blocks.layers * (blocks.head_predictor + blocks.channel_predictor)
    run = heads.sum(1) * blocks.head(lengths) + channels.sum(1) * blocks.channel(lengths)
    sparse = gates + run.mean()
    full = blocks.full(lengths)
    dense = full.double().mean() if isinstance(full, Tensor) else float(full)
    sparsity = 1 - sparse / dense
    head_share, channel_share = heads.mean(0) / blocks.heads, channels.mean(0) / blocks.channels
    return Terms(
        (sparsity - prune) ** 2,
        ((prune - (1 - head_share)) ** 2).mean(),
        ((prune - (1 - channel_share)) ** 2).mean(),
        sparsity,
        dense,
        sparse,
    )


@dataclass(frozen=True)
class Report:
    """A model's operations over some rows of one length: full, and with gates on the average."""

    full: float
    dynamic: float

    @property
    def ratio(self) -> float:
        """The share that is left."""
        return self.dynamic / self.full

    @property
    def lines(self) -> list[str]:
        """As the original prints them."""
        return [
            f"Original model flops = {self.full / GIGA:.3f} GFLOPs\n",
            f"Dynamic model average flops = {self.dynamic / GIGA:.3f} GFLOPs\n",
            f"Compressed ratio = {self.ratio:.3f}",
        ]


def report(heads: Any, channels: Any, length: int, blocks: Blocks, original: bool) -> Report:
    """Of the mean heads and channels kept per layer; the original counts the heads' gate once per head."""
    predictors = blocks.head_predictor * (blocks.heads if original else 1) + blocks.channel_predictor
    run = sum(float(one) for one in heads) * blocks.head(length)
    run += sum(float(one) for one in channels) * blocks.channel(length)
    return Report(float(blocks.full(length)), run + blocks.layers * predictors)
