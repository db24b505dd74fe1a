"""A layer with its gates that leaves out what rows prune: whole heads, whole blocks of channels. For answering.

Units that the same rows keep, one behind the other in the weights, are taken together: their weights are a view. Where
all rows keep the same units, rows are not gathered at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.width.masked import split_heads
from offramp.width.parts import Parts

__all__ = ["Kept", "attend_kept", "feed_kept", "pays", "runs"]

Kept = NDArray[np.bool_]  # (rows, units)
# in operations that the time would have bought, fitted with benchmarks/width.py: what a run of units costs by itself,
RUN = 4e6
MOVE = 100  # and what a token costs per channel of the encoder where its rows are gathered and added back


def pays(kept: Kept, length: int, unit: float, size: int) -> bool:
    """Whether leaving units out takes less time than multiplying by zero; a unit costs so much per token."""
    rows, units = kept.shape
    cost = 0.0
    for first, end, some in runs(kept):
        tokens = length * (rows if some is None else len(some))
        cost += RUN + tokens * (unit * (end - first) + (0 if some is None else MOVE * size))
    return cost < RUN + rows * length * unit * units


def runs(kept: Kept) -> Iterator[tuple[int, int, NDArray[np.int64] | None]]:
    """Neighbouring units that the same rows keep: first, end, and the rows; None: all of them."""
    units = kept.shape[1]
    if not units:
        return
    changes = np.flatnonzero((kept[:, 1:] != kept[:, :-1]).any(0)) + 1
    for first, end in zip([0, *changes], [*changes, units], strict=True):
        rows = np.flatnonzero(kept[:, first])
        if len(rows):
            yield int(first), int(end), None if len(rows) == len(kept) else rows


def attend_kept(parts: Parts, hidden: Tensor, hides: Tensor | None, kept: Kept, group: int) -> Tensor:
    """The attention block behind its LayerNorm, from the heads that each row keeps."""
    size = parts.head_size * group
    out = _start(parts.out.bias, hidden)
    for first, end, rows in runs(kept):
        some = slice(first * size, end * size)
        chosen, places = _gather(hidden, rows)
        query, key, value = (
            split_heads(functional.linear(chosen, one.weight[some], _part(one.bias, some)), (end - first) * group)
            for one in (parts.query, parts.key, parts.value)
        )
        mask = _seen_by(hides, slice(first * group, end * group), places)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
        _add(out, functional.linear(seen, parts.out.weight[:, some]), places)
    return parts.attention_norm(out.add_(hidden))


def feed_kept(parts: Parts, hidden: Tensor, kept: Kept, block: int) -> Tensor:
    """The feed-forward block behind its LayerNorm, from the blocks of channels that each row keeps."""
    out = _start(parts.down.bias, hidden)
    for first, end, rows in runs(kept):
        some = slice(first * block, end * block)
        chosen, places = _gather(hidden, rows)
        inner = parts.act(functional.linear(chosen, parts.up.weight[some], _part(parts.up.bias, some)))
        _add(out, functional.linear(inner, parts.down.weight[:, some]), places)
    return parts.norm(out.add_(hidden))


def _seen_by(hides: Tensor | None, heads: slice, places: Tensor | None) -> Tensor | None:
    """What is added to some heads' scores for some rows; one for all stays one for all."""
    if hides is None:
        return None
    if hides.shape[1] > 1:
        hides = hides[:, heads]
    return hides if places is None or hides.shape[0] == 1 else hides.index_select(0, places)


def _start(bias: Tensor | None, like: Tensor) -> Tensor:
    out = torch.zeros_like(like)
    return out if bias is None else out.add_(bias)


def _part(bias: Tensor | None, some: slice) -> Tensor | None:
    return None if bias is None else bias[some]


def _gather(hidden: Tensor, rows: NDArray[np.int64] | None) -> tuple[Tensor, Tensor | None]:
    if rows is None:
        return hidden, None
    places = torch.from_numpy(rows).to(hidden.device)
    return hidden.index_select(0, places), places


def _add(out: Tensor, made: Tensor, places: Tensor | None) -> None:
    if places is None:
        out.add_(made)
    else:
        out.index_add_(0, places, made)
