"""A layer with its gates, everything computed and what a row prunes multiplied by zero: what training runs."""

from __future__ import annotations

import torch
from torch import Tensor

from offramp.originals.width.parts import Parts

__all__ = ["attend", "feed", "split_heads", "spread"]


def split_heads(made: Tensor, heads: int) -> Tensor:
    """(rows, length, channels) as (rows, heads, length, head size)."""
    return made.view(*made.shape[:2], heads, -1).transpose(1, 2)


def attend(parts: Parts, hidden: Tensor, hides: Tensor | None, mask: Tensor, training: bool) -> Tensor:
    """The attention block behind its LayerNorm; `mask` (rows, heads) says which heads count."""
    query, key, value = (split_heads(linear(hidden), parts.heads) for linear in (parts.query, parts.key, parts.value))
    dropout = parts.attention_dropout if training else 0.0
    seen = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=hides, dropout_p=dropout)
    seen = (seen * mask[:, :, None, None]).transpose(1, 2).flatten(2)
    return parts.attention_norm(parts.out_dropout(parts.out(seen)) + hidden)


def feed(parts: Parts, hidden: Tensor, mask: Tensor) -> Tensor:
    """The feed-forward block behind its LayerNorm; `mask` (rows, channels) acts before the activation."""
    inner = parts.act(parts.up(hidden) * mask[:, None, :])
    return parts.norm(parts.down_dropout(parts.down(inner)) + hidden)


def spread(mask: Tensor, times: int) -> Tensor:
    """Each unit's value for all that it stands for."""
    return mask if times == 1 else mask.repeat_interleave(times, dim=-1)
