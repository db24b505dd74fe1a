"""Run an encoder's layers with gates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from offramp.encoders import EncoderState, Family
from offramp.originals.width.gates import Gates
from offramp.originals.width.layer_parts import LayerParts
from offramp.originals.width.masked import expand_groups, masked_attention, masked_feed_forward
from offramp.originals.width.skipping import (
    Kept,
    PackedWeights,
    is_skipping_faster,
    pack_weights,
    skipping_attention,
    skipping_feed_forward,
)

__all__ = ["GateRecorder", "GatedLayers", "run_gated_layers"]


@dataclass(frozen=True)
class GatedLayers:
    """Gates as a plug-in of the torch stepper: it runs the layers instead of the family."""

    gates: Gates

    @property
    def module(self) -> Gates:
        """The module that holds the gates' weights."""
        return self.gates

    @property
    def pad_to(self) -> int | None:
        """The length to pad to, if the first gate also averages over padding; 0 if unknown, None if it does not."""
        width = self.gates.width
        return None if width.first == "real" else width.pad_to or 0

    def step(self, family: Family, encoder: Any, state: EncoderState, depth: int) -> EncoderState:
        """Run the layers up to `depth`."""
        return run_gated_layers(self.gates, family, encoder, state, depth)


class GateRecorder:
    """Records the gates' outputs, layer by layer; for tests and reports."""

    def __init__(self) -> None:
        self.head_logits: list[Tensor] = []
        self.channel_logits: list[Tensor] = []
        self.head_masks: list[Tensor] = []
        self.channel_masks: list[Tensor] = []

    def add(self, head_logits: Tensor, channel_logits: Tensor, head_mask: Tensor, channel_mask: Tensor) -> None:
        """Record one layer."""
        self.head_logits.append(head_logits)
        self.channel_logits.append(channel_logits)
        self.head_masks.append(head_mask)
        self.channel_masks.append(channel_mask)


def run_gated_layers(
    gates: Gates, family: Family, encoder: Any, state: EncoderState, depth: int, recorder: GateRecorder | None = None
) -> EncoderState:
    """Run the layers up to `depth`, with the heads and channels that the gates keep for each row."""
    width = gates.width
    for index in range(state.depth, depth):
        parts = family.parts(encoder, index)
        head_gate, channel_gate = gates.of_layer(index + 1)
        head_logits = head_gate(_first_gate_input(state) if index == 0 else state.hidden[:, 0])
        head_mask = head_gate.mask(head_logits)
        hidden = _attention(gates, index + 1, parts, state.hidden, family.attention_bias(state), head_mask)
        channel_logits = channel_gate(hidden[:, 0])
        channel_mask = channel_gate.mask(channel_logits)
        hidden = _feed_forward(gates, index + 1, parts, hidden, channel_mask)
        counts = [head_mask.sum(-1) * width.head_group, channel_mask.sum(-1) * width.block]
        kept = torch.stack(counts, dim=-1).unsqueeze(1)
        if state.kept is not None:
            kept = torch.cat([state.kept, kept], dim=1)
        if recorder is not None:
            recorder.add(head_logits, channel_logits, head_mask, channel_mask)
        state = replace(state, hidden=hidden, depth=index + 1, kept=kept)
    return state


def _attention(
    gates: Gates, layer: int, parts: LayerParts, hidden: Tensor, attention_bias: Tensor | None, mask: Tensor
) -> Tensor:
    group = gates.width.head_group
    kept = _kept_units(gates, mask)
    if kept is not None:
        length, size = hidden.shape[1:]
        unit = group * parts.head_size * (8 * size + 4 * length)
        if gates.skipping == "always" or is_skipping_faster(kept, length, unit, size):
            return skipping_attention(parts, hidden, attention_bias, kept, group, _packed_weights(gates, layer, parts))
    return masked_attention(parts, hidden, attention_bias, expand_groups(mask, group), parts.query.training)


def _packed_weights(gates: Gates, layer: int, parts: LayerParts) -> PackedWeights:
    """Return a layer's weights packed for skipping; cached until they change."""
    linears = (parts.query, parts.key, parts.value, parts.out, parts.down)
    weights = [value for linear in linears for value in (linear.weight, linear.bias) if value is not None]
    versions = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
    if layer not in gates.packed or gates.packed[layer][0] != versions:
        gates.packed[layer] = (versions, pack_weights(parts))
    packed: PackedWeights = gates.packed[layer][1]
    return packed


def _feed_forward(gates: Gates, layer: int, parts: LayerParts, hidden: Tensor, mask: Tensor) -> Tensor:
    block = gates.width.block
    kept = _kept_units(gates, mask)
    if kept is not None:
        length, size = hidden.shape[1:]
        if gates.skipping == "always" or is_skipping_faster(kept, length, 4 * size * block, size):
            return skipping_feed_forward(parts, hidden, kept, block, _packed_weights(gates, layer, parts))
    return masked_feed_forward(parts, hidden, expand_groups(mask, block))


def _kept_units(gates: Gates, mask: Tensor) -> Kept | None:
    """Return the units that rows keep; None if nothing can be skipped: in training, and on accelerators."""
    if gates.skipping == "never" or torch.is_grad_enabled() or mask.device.type != "cpu":
        return None
    kept: Kept = mask.numpy() > 0.5 if mask.dtype != torch.bfloat16 else mask.float().numpy() > 0.5
    return kept


def _first_gate_input(state: EncoderState) -> Tensor:
    """Return the input of the first head gate: a mean, because the first token has no context yet."""
    if state.padded_mean is not None:
        return state.padded_mean
    if state.weights is None:
        return state.hidden.mean(1)
    return torch.bmm(state.weights, state.hidden).squeeze(1)
