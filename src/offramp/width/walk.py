"""Rows through layers with gates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from offramp.backbones import Family, Inside
from offramp.width.gates import Gates
from offramp.width.masked import attend, feed, spread

__all__ = ["Watch", "walk"]


class Watch:
    """Notes what gates said, layer by layer; for tests and reports."""

    def __init__(self) -> None:
        self.head_logits: list[Tensor] = []
        self.channel_logits: list[Tensor] = []
        self.head_masks: list[Tensor] = []
        self.channel_masks: list[Tensor] = []


def walk(gates: Gates, family: Family, encoder: Any, inside: Inside, depth: int, watch: Watch | None = None) -> Inside:
    """Run the layers up to `depth`, each row with the heads and channels that its gates keep."""
    width, training = gates.width, encoder.training
    for index in range(inside.depth, depth):
        parts = family.parts(encoder, index)
        heads, channels = gates.of(index + 1)
        read = _first(inside) if index == 0 else inside.hidden[:, 0]
        head_logits = heads(read)
        head_mask = spread(heads, head_logits, width.head_group)
        hidden = attend(parts, inside.hidden, inside.attention, head_mask, training)
        channel_logits = channels(hidden[:, 0])
        channel_mask = spread(channels, channel_logits, width.block)
        hidden = feed(parts, hidden, channel_mask)
        kept = torch.stack([head_mask.sum(-1), channel_mask.sum(-1)], dim=-1).unsqueeze(1)
        if inside.kept is not None:
            kept = torch.cat([inside.kept, kept], dim=1)
        if watch is not None:
            watch.head_logits.append(head_logits)
            watch.channel_logits.append(channel_logits)
            watch.head_masks.append(head_mask)
            watch.channel_masks.append(channel_mask)
        inside = replace(inside, hidden=hidden, depth=index + 1, kept=kept)
    return inside


def _first(inside: Inside) -> Tensor:
    """What the first layer's heads' gate reads: no token knows the others yet."""
    if inside.first is not None:
        return inside.first
    if inside.weights is None:
        return inside.hidden.mean(1)
    return torch.bmm(inside.weights, inside.hidden).squeeze(1)
