"""A gated layer that computes everything and multiplies pruned units by zero; used in training."""

from __future__ import annotations

import torch
from torch import Tensor

from offramp.originals.width.layer_parts import LayerParts

__all__ = ["expand_groups", "masked_attention", "masked_feed_forward", "split_heads"]


def split_heads(states: Tensor, heads: int) -> Tensor:
    """Reshape (rows, length, channels) to (rows, heads, length, head size)."""
    return states.view(*states.shape[:2], heads, -1).transpose(1, 2)


def masked_attention(
    parts: LayerParts, hidden: Tensor, attention_bias: Tensor | None, mask: Tensor, training: bool
) -> Tensor:
    """Run the attention block with its LayerNorm; `mask` (rows, heads) selects the heads."""
    query, key, value = (split_heads(linear(hidden), parts.heads) for linear in (parts.query, parts.key, parts.value))
    dropout = parts.attention_dropout if training else 0.0
    context = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_bias, dropout_p=dropout
    )
    context = (context * mask[:, :, None, None]).transpose(1, 2).flatten(2)
    return parts.attention_norm(parts.out_dropout(parts.out(context)) + hidden)


def masked_feed_forward(parts: LayerParts, hidden: Tensor, mask: Tensor) -> Tensor:
    """Run the feed-forward block with its LayerNorm; `mask` (rows, channels) is applied before the activation."""
    inner = parts.act(parts.up(hidden) * mask[:, None, :])
    return parts.norm(parts.down_dropout(parts.down(inner)) + hidden)


def expand_groups(mask: Tensor, size: int) -> Tensor:
    """Repeat each group's value for all of its heads or channels."""
    return mask if size == 1 else mask.repeat_interleave(size, dim=-1)
