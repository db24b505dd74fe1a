"""A gated layer that skips pruned heads and blocks of channels; used for inference on CPUs.

Neighbouring units that the same rows keep form a run, and their weights are a view. If all rows keep the same units, no
rows are gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.originals.width.layer_parts import LayerParts

__all__ = [
    "Kept",
    "PackedWeights",
    "is_skipping_faster",
    "pack_weights",
    "runs",
    "skipping_attention",
    "skipping_feed_forward",
]

Kept = NDArray[np.bool_]  # (rows, units)
# overheads measured by benchmarks/width.py, in equivalent operations: per run; for gathering a run's rows and adding
# them back, per run; and for the same, per token and channel of the encoder
RUN_COST, GATHER_COST, MOVE_COST = 2e6, 4e6, 120


@dataclass(frozen=True)
class PackedWeights:
    """A layer's weights with those of each unit contiguous in memory."""

    heads: Tensor  # query, key and value of each head, (heads × 3 × head size, hidden size)
    bias: Tensor | None  # in the same order
    out: Tensor  # transposed, (heads × head size, hidden size)
    down: Tensor  # transposed, (channels, hidden size)


def is_skipping_faster(kept: Kept, length: int, unit: float, size: int) -> bool:
    """Return whether skipping units is faster than multiplying by zero; `unit`: operations per unit and token."""
    num_rows, units = kept.shape
    full = RUN_COST + num_rows * length * unit * units
    if num_rows == 1:
        starts = int(kept[0, 0]) + int((kept[0, 1:] & ~kept[0, :-1]).sum())
        return RUN_COST * starts + length * unit * float(kept.sum()) < full
    changes = int((kept[:, 1:] != kept[:, :-1]).any(0).sum())
    if (RUN_COST + GATHER_COST) * changes > (1 - float(kept.mean())) * full:
        return False  # the overhead of the runs alone exceeds the savings
    cost = 0.0
    for first, end, rows in runs(kept):
        tokens = length * (num_rows if rows is None else len(rows))
        cost += RUN_COST + tokens * unit * (end - first)
        if rows is not None:
            cost += GATHER_COST + tokens * MOVE_COST * size
    return cost < full


def runs(kept: Kept) -> Iterator[tuple[int, int, NDArray[np.int64] | None]]:
    """Yield neighbouring units that the same rows keep: first, end, and the rows (None: all rows)."""
    units = kept.shape[1]
    if not units:
        return
    changes = np.flatnonzero((kept[:, 1:] != kept[:, :-1]).any(0)) + 1
    for first, end in zip([0, *changes], [*changes, units], strict=True):
        rows = np.flatnonzero(kept[:, first])
        if len(rows):
            yield int(first), int(end), None if len(rows) == len(kept) else rows


def skipping_attention(
    parts: LayerParts, hidden: Tensor, attention_bias: Tensor | None, kept: Kept, group: int, packed: PackedWeights
) -> Tensor:
    """Run the attention block with its LayerNorm, with the heads that each row keeps."""
    are_rows_equal = bool((kept == kept[:1]).all())
    out = _start(parts.out.bias, hidden)
    add_attention = _add_shared_heads if are_rows_equal else _add_heads_by_run
    add_attention(parts, packed, hidden, attention_bias, kept, group, out)
    return parts.attention_norm(out.add_(hidden))


def pack_weights(parts: LayerParts) -> PackedWeights:
    """Return copies of a layer's weights in packed order."""
    linears = (parts.query, parts.key, parts.value)
    split = (parts.heads, parts.head_size)
    weight = torch.stack([linear.weight.detach().view(*split, -1) for linear in linears], 1).flatten(0, 2)
    bias = None
    if parts.query.bias is not None:
        bias = torch.stack([linear.bias.detach().view(*split) for linear in linears], 1).flatten()
    transposed = (linear.weight.detach().T.contiguous() for linear in (parts.out, parts.down))
    return PackedWeights(weight, bias, *transposed)


def _add_shared_heads(
    parts: LayerParts,
    packed: PackedWeights,
    hidden: Tensor,
    attention_bias: Tensor | None,
    kept: Kept,
    group: int,
    out: Tensor,
) -> None:
    """All rows keep the same heads: attention runs once, with these."""
    head_ranges = [(first * group, end * group) for first, end, _ in runs(kept)]
    if not head_ranges:
        return
    count = sum(end - first for first, end in head_ranges)
    qkv = hidden.new_empty(hidden.shape[0] * hidden.shape[1], count * 3 * parts.head_size)
    start = 0
    for first, end in head_ranges:
        channels = slice(first * 3 * parts.head_size, end * 3 * parts.head_size)
        stop = start + channels.stop - channels.start
        _linear(hidden, packed.heads[channels], _slice_bias(packed.bias, channels), qkv[:, start:stop])
        start = stop
    if attention_bias is not None and attention_bias.shape[1] > 1:
        attention_bias = attention_bias[:, np.flatnonzero(np.repeat(kept[0], group))]
    context = _attention(qkv.view(*hidden.shape[:2], count, 3, parts.head_size), attention_bias)
    start = 0
    for first, end in head_ranges:
        stop = start + (end - first) * parts.head_size
        _add(out, context[..., start:stop], packed.out[first * parts.head_size : end * parts.head_size], None)
        start = stop


def _add_heads_by_run(
    parts: LayerParts,
    packed: PackedWeights,
    hidden: Tensor,
    attention_bias: Tensor | None,
    kept: Kept,
    group: int,
    out: Tensor,
) -> None:
    """Rows keep different heads: for each run, gather its rows, and add the result back."""
    for first, end, rows in runs(kept):
        inputs, indices = _gather(hidden, rows)
        heads = slice(first * group, end * group)
        qkv = _project(packed, inputs, heads.start, heads.stop, parts.head_size)
        context = _attention(qkv, _slice_attention_bias(attention_bias, heads, indices))
        channels = slice(heads.start * parts.head_size, heads.stop * parts.head_size)
        _add(out, context, packed.out[channels], indices)


def _project(packed: PackedWeights, inputs: Tensor, first: int, end: int, size: int) -> Tensor:
    """Return query, key and value of a range of heads, (rows, length, heads, 3, head size)."""
    channels = slice(first * 3 * size, end * 3 * size)
    qkv = functional.linear(inputs, packed.heads[channels], _slice_bias(packed.bias, channels))
    return qkv.view(*inputs.shape[:2], end - first, 3, size)


def _attention(qkv: Tensor, attention_bias: Tensor | None) -> Tensor:
    query, key, value = qkv.permute(3, 0, 2, 1, 4)
    context = functional.scaled_dot_product_attention(query, key, value, attn_mask=attention_bias)
    return context.transpose(1, 2).flatten(2)


def skipping_feed_forward(parts: LayerParts, hidden: Tensor, kept: Kept, block: int, packed: PackedWeights) -> Tensor:
    """Run the feed-forward block with its LayerNorm, with the blocks of channels that each row keeps."""
    out = _start(parts.down.bias, hidden)
    channel_runs = [(slice(first * block, end * block), rows) for first, end, rows in runs(kept)]
    tokens = [hidden.shape[1] * (len(hidden) if rows is None else len(rows)) for _, rows in channel_runs]
    sizes = [
        count * (channels.stop - channels.start) for count, (channels, _) in zip(tokens, channel_runs, strict=True)
    ]
    flat = hidden.new_empty(sum(sizes))  # all runs in one tensor, so that the activation is one operation
    all_indices = []
    for part, count, (channels, rows) in zip(flat.split_with_sizes(sizes), tokens, channel_runs, strict=True):
        inputs, indices = _gather(hidden, rows)
        _linear(inputs, parts.up.weight[channels], _slice_bias(parts.up.bias, channels), part.view(count, -1))
        all_indices.append(indices)
    activated = parts.act(flat).split_with_sizes(sizes)
    for part, indices, (channels, _) in zip(activated, all_indices, channel_runs, strict=True):
        inner = part.view(-1, hidden.shape[1], channels.stop - channels.start)
        _add(out, inner, packed.down[channels], indices)
    return parts.norm(out.add_(hidden))


def _slice_attention_bias(attention_bias: Tensor | None, heads: slice, indices: Tensor | None) -> Tensor | None:
    """Return the bias of these heads and rows; dimensions of size 1 are broadcast."""
    if attention_bias is None:
        return None
    if attention_bias.shape[1] > 1:
        attention_bias = attention_bias[:, heads]
    if indices is None or attention_bias.shape[0] == 1:
        return attention_bias
    return attention_bias.index_select(0, indices)


def _start(bias: Tensor | None, like: Tensor) -> Tensor:
    out = torch.zeros_like(like)
    return out if bias is None else out.add_(bias)


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write the outputs of a slice of a linear layer to `out`."""
    flat = inputs.reshape(-1, inputs.shape[-1])
    if bias is None:
        torch.mm(flat, weight.T, out=out)
    else:
        torch.addmm(bias, flat, weight.T, out=out)


def _slice_bias(bias: Tensor | None, channels: slice) -> Tensor | None:
    return None if bias is None else bias[channels]


def _gather(hidden: Tensor, rows: NDArray[np.int64] | None) -> tuple[Tensor, Tensor | None]:
    if rows is None:
        return hidden, None
    indices = torch.from_numpy(rows).to(hidden.device)
    return hidden.index_select(0, indices), indices


def _add(out: Tensor, inner: Tensor, weight: Tensor, indices: Tensor | None) -> None:
    """Add the outputs of a slice of a linear layer to `out`, for all rows or those with `indices`."""
    if indices is None:
        flat = out.view(-1, out.shape[-1])
        flat.addmm_(inner.reshape(-1, inner.shape[-1]), weight)
    else:
        out.index_add_(0, indices, inner @ weight)
