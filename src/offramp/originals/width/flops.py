"""FLOPs of gated layers, exact and as EBERT counts them; a multiply-add is two FLOPs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from offramp.originals.width.gates import INNER

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = ["FlopsReport", "LayerFlops", "WidthLoss", "flops_report", "layer_flops", "width_loss"]

GIGA = 1024**3  # what the original calls a GFLOP


@dataclass(frozen=True)
class LayerFlops:
    """FLOPs of a model's layers by head and channel; a length can be a number or a tensor of row lengths."""

    layers: int
    heads: int
    channels: int
    size: int
    head_size: int
    head_gates: int
    channel_gates: int

    def head(self, length: Any) -> Any:
        """FLOPs of a head: query, key, value, scores, weighted sum, and its part of the output projection."""
        return 8 * length * self.head_size * self.size + 4 * length**2 * self.head_size

    def channel(self, length: Any) -> Any:
        """FLOPs of a channel of the feed-forward block."""
        return 4 * length * self.size

    @property
    def head_predictor(self) -> int:
        """FLOPs of a layer's head gate."""
        return 2 * INNER * (self.size + self.head_gates)

    @property
    def channel_predictor(self) -> int:
        """FLOPs of a layer's channel gate."""
        return 2 * INNER * (self.size + self.channel_gates)

    def full(self, length: Any) -> Any:
        """FLOPs of all layers with all heads and channels, without gates."""
        return self.layers * (self.heads * self.head(length) + self.channels * self.channel(length))


def layer_flops(config: AdaptiveConfig, flops: str | None = None) -> LayerFlops:
    """Return a model's FLOPs counter; `original` assumes heads of size 64 and 12 outputs of the head gate."""
    width = config.gating
    is_original = (flops or (width.flops if width else "exact")) == "original"
    heads, channels, size = config.num_heads, config.num_channels, config.hidden_size
    group, block = (width.head_group, width.block) if width else (1, 1)
    return LayerFlops(
        config.num_layers,
        heads,
        channels,
        size,
        64 if is_original else size // heads,
        12 if is_original else heads // group,
        channels // block,
    )


@dataclass(frozen=True)
class WidthLoss:
    """The three loss terms that pull the gates to their target for a batch, and what they are computed from."""

    flops: Tensor
    heads: Tensor
    channels: Tensor
    sparsity: Tensor  # fraction of FLOPs saved, including the gates' cost
    dense: Tensor | float
    sparse: Tensor

    @property
    def total(self) -> Tensor:
        """The weighted sum: the per-layer terms have five times the weight of the overall one."""
        return self.flops + 5 * self.heads + 5 * self.channels


def width_loss(kept: Tensor, lengths: Any, costs: LayerFlops, prune: float) -> WidthLoss:
    """Return the loss of the kept heads and channels (rows, layers, 2); `lengths`: one number, or one per row."""
    heads, channels = kept[..., 0], kept[..., 1]  # (rows, layers)
    gates = costs.layers * (costs.head_predictor + costs.channel_predictor)
    run = heads.sum(1) * costs.head(lengths) + channels.sum(1) * costs.channel(lengths)
    sparse = gates + run.mean()
    full = costs.full(lengths)
    dense = full.double().mean() if isinstance(full, Tensor) else float(full)
    sparsity = 1 - sparse / dense
    kept_heads, kept_channels = heads.mean(0) / costs.heads, channels.mean(0) / costs.channels
    return WidthLoss(
        (sparsity - prune) ** 2,
        ((prune - (1 - kept_heads)) ** 2).mean(),
        ((prune - (1 - kept_channels)) ** 2).mean(),
        sparsity,
        dense,
        sparse,
    )


@dataclass(frozen=True)
class FlopsReport:
    """A model's FLOPs for rows of one length: full, and the mean with gates."""

    full: float
    dynamic: float

    @property
    def ratio(self) -> float:
        """The fraction of FLOPs that remains."""
        return self.dynamic / self.full

    @property
    def lines(self) -> list[str]:
        """The lines that the original prints."""
        return [
            f"Original model flops = {self.full / GIGA:.3f} GFLOPs\n",
            f"Dynamic model average flops = {self.dynamic / GIGA:.3f} GFLOPs\n",
            f"Compressed ratio = {self.ratio:.3f}",
        ]


def flops_report(heads: Any, channels: Any, length: int, costs: LayerFlops, original: bool) -> FlopsReport:
    """Return the report for the mean heads and channels kept per layer; the original counts the head gate per head."""
    predictors = costs.head_predictor * (costs.heads if original else 1) + costs.channel_predictor
    run = sum(float(count) for count in heads) * costs.head(length)
    run += sum(float(count) for count in channels) * costs.channel(length)
    return FlopsReport(float(costs.full(length)), run + costs.layers * predictors)
