"""Rows through layers with gates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from offramp.encoders import EncoderState, Family
from offramp.originals.width.gates import Gates
from offramp.originals.width.masked import attend, feed, spread
from offramp.originals.width.parts import Parts
from offramp.originals.width.skipping import Kept, Packed, attend_kept, feed_kept, pack, pays

__all__ = ["GatedLayers", "Watch", "walk"]


@dataclass(frozen=True)
class GatedLayers:
    """Gates as a plug-in of the torch stepper: it runs the layers in place of the family."""

    gates: Gates

    @property
    def module(self) -> Gates:
        """The gates' weights."""
        return self.gates

    @property
    def pads_to(self) -> int | None:
        """The first gate of some checkpoints reads the mean over padding, too."""
        width = self.gates.width
        return None if width.first == "real" else width.pad_to or 0

    def step(self, family: Family, encoder: Any, state: EncoderState, depth: int) -> EncoderState:
        """Run the layers up to `depth`."""
        return walk(self.gates, family, encoder, state, depth)


class Watch:
    """Notes what gates said, layer by layer; for tests and reports."""

    def __init__(self) -> None:
        self.head_logits: list[Tensor] = []
        self.channel_logits: list[Tensor] = []
        self.head_masks: list[Tensor] = []
        self.channel_masks: list[Tensor] = []

    def add(self, head_logits: Tensor, channel_logits: Tensor, head_mask: Tensor, channel_mask: Tensor) -> None:
        """One layer more."""
        self.head_logits.append(head_logits)
        self.channel_logits.append(channel_logits)
        self.head_masks.append(head_mask)
        self.channel_masks.append(channel_mask)


def walk(
    gates: Gates, family: Family, encoder: Any, inside: EncoderState, depth: int, watch: Watch | None = None
) -> EncoderState:
    """Run the layers up to `depth`, each row with the heads and channels that its gates keep."""
    width = gates.width
    for index in range(inside.depth, depth):
        parts = family.parts(encoder, index)
        heads, channels = gates.of(index + 1)
        head_logits = heads(_first(inside) if index == 0 else inside.hidden[:, 0])
        head_mask = heads.mask(head_logits)
        hidden = _attend(gates, index + 1, parts, inside.hidden, family.hides(inside), head_mask)
        channel_logits = channels(hidden[:, 0])
        channel_mask = channels.mask(channel_logits)
        hidden = _feed(gates, index + 1, parts, hidden, channel_mask)
        each = [head_mask.sum(-1) * width.head_group, channel_mask.sum(-1) * width.block]
        kept = torch.stack(each, dim=-1).unsqueeze(1)
        if inside.kept is not None:
            kept = torch.cat([inside.kept, kept], dim=1)
        if watch is not None:
            watch.add(head_logits, channel_logits, head_mask, channel_mask)
        inside = replace(inside, hidden=hidden, depth=index + 1, kept=kept)
    return inside


def _attend(gates: Gates, layer: int, parts: Parts, hidden: Tensor, hides: Tensor | None, mask: Tensor) -> Tensor:
    group = gates.width.head_group
    kept = _to_skip(gates, mask)
    if kept is not None:
        length, size = hidden.shape[1:]
        unit = group * parts.head_size * (8 * size + 4 * length)
        if gates.skips == "always" or pays(kept, length, unit, size):
            return attend_kept(parts, hidden, hides, kept, group, _packed(gates, layer, parts))
    return attend(parts, hidden, hides, spread(mask, group), parts.query.training)


def _packed(gates: Gates, layer: int, parts: Parts) -> Packed:
    """A layer's weights packed for skipping; made again when they have changed."""
    linears = (parts.query, parts.key, parts.value, parts.out, parts.down)
    weights = [value for one in linears for value in (one.weight, one.bias) if value is not None]
    now = [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in weights]
    if layer not in gates.packed or gates.packed[layer][0] != now:
        gates.packed[layer] = (now, pack(parts))
    packed: Packed = gates.packed[layer][1]
    return packed


def _feed(gates: Gates, layer: int, parts: Parts, hidden: Tensor, mask: Tensor) -> Tensor:
    block = gates.width.block
    kept = _to_skip(gates, mask)
    if kept is not None:
        length, size = hidden.shape[1:]
        if gates.skips == "always" or pays(kept, length, 4 * size * block, size):
            return feed_kept(parts, hidden, kept, block, _packed(gates, layer, parts))
    return feed(parts, hidden, spread(mask, block))


def _to_skip(gates: Gates, mask: Tensor) -> Kept | None:
    """What rows keep, on the host; None where nothing is to be left out: in training, and off the CPU."""
    if gates.skips == "never" or torch.is_grad_enabled() or mask.device.type != "cpu":
        return None
    kept: Kept = mask.numpy() > 0.5 if mask.dtype != torch.bfloat16 else mask.float().numpy() > 0.5
    return kept


def _first(inside: EncoderState) -> Tensor:
    """What the first layer's heads' gate reads: no token knows the others yet."""
    if inside.first is not None:
        return inside.first
    if inside.weights is None:
        return inside.hidden.mean(1)
    return torch.bmm(inside.weights, inside.hidden).squeeze(1)
