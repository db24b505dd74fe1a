"""A layer with its gates that leaves out what rows prune: whole heads, whole blocks of channels. For answering.

Units that the same rows keep, one behind the other in the weights, are taken together: their weights are a view. Where
all rows keep the same units, rows are not gathered at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.originals.width.parts import Parts

__all__ = ["Kept", "Packed", "attend_kept", "feed_kept", "pack", "pays", "runs"]

Kept = NDArray[np.bool_]  # (rows, units)
# in operations that the time would have bought (benchmarks/width.py): what a run of units costs by itself, and where
# rows are gathered for it and added back, what that costs, and a token of them per channel of the encoder
RUN, GATHER, MOVE = 2e6, 4e6, 120


@dataclass(frozen=True)
class Packed:
    """A layer's weights as skipping reads them: what belongs to a unit lies together in memory."""

    heads: Tensor  # query, key and value of each head behind one another, (heads × 3 × head size, hidden size)
    bias: Tensor | None  # likewise
    out: Tensor  # transposed, (heads × head size, hidden size)
    down: Tensor  # transposed, (channels, hidden size)


def pays(kept: Kept, length: int, unit: float, size: int) -> bool:
    """Whether leaving units out takes less time than multiplying by zero; a unit costs so much per token."""
    rows, units = kept.shape
    full = RUN + rows * length * unit * units
    if rows == 1:
        starts = int(kept[0, 0]) + int((kept[0, 1:] & ~kept[0, :-1]).sum())
        return RUN * starts + length * unit * float(kept.sum()) < full
    changes = int((kept[:, 1:] != kept[:, :-1]).any(0).sum())
    if (RUN + GATHER) * changes > (1 - float(kept.mean())) * full:
        return False  # more runs than all that is pruned could pay for: not to be looked at one by one
    cost = 0.0
    for first, end, some in runs(kept):
        tokens = length * (rows if some is None else len(some))
        cost += RUN + tokens * unit * (end - first)
        if some is not None:
            cost += GATHER + tokens * MOVE * size
    return cost < full


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


def attend_kept(parts: Parts, hidden: Tensor, hides: Tensor | None, kept: Kept, group: int, packed: Packed) -> Tensor:
    """The attention block behind its LayerNorm, from the heads that each row keeps."""
    alike = bool((kept == kept[:1]).all())
    out = _start(parts.out.bias, hidden)
    (_attend_alike if alike else _attend_apart)(parts, packed, hidden, hides, kept, group, out)
    return parts.attention_norm(out.add_(hidden))


def pack(parts: Parts) -> Packed:
    """Copies of a layer's weights, in that order."""
    linears = (parts.query, parts.key, parts.value)
    split = (parts.heads, parts.head_size)
    weight = torch.stack([one.weight.detach().view(*split, -1) for one in linears], 1).flatten(0, 2)
    bias = None
    if parts.query.bias is not None:
        bias = torch.stack([one.bias.detach().view(*split) for one in linears], 1).flatten()
    return Packed(weight, bias, *(one.weight.detach().T.contiguous() for one in (parts.out, parts.down)))


def _attend_alike(
    parts: Parts, packed: Packed, hidden: Tensor, hides: Tensor | None, kept: Kept, group: int, out: Tensor
) -> None:
    """All rows keep the same heads: attention runs once, over these."""
    places = [(first * group, end * group) for first, end, _ in runs(kept)]
    if not places:
        return
    count = sum(end - first for first, end in places)
    made = hidden.new_empty(hidden.shape[0] * hidden.shape[1], count * 3 * parts.head_size)
    start = 0
    for first, end in places:
        some = slice(first * 3 * parts.head_size, end * 3 * parts.head_size)
        stop = start + some.stop - some.start
        _product(hidden, packed.heads[some], _some(packed.bias, some), made[:, start:stop])
        start = stop
    if hides is not None and hides.shape[1] > 1:
        hides = hides[:, np.flatnonzero(np.repeat(kept[0], group))]
    seen = _attention(made.view(*hidden.shape[:2], count, 3, parts.head_size), hides)
    start = 0
    for first, end in places:
        stop = start + (end - first) * parts.head_size
        _add(out, seen[..., start:stop], packed.out[first * parts.head_size : end * parts.head_size], None)
        start = stop


def _attend_apart(
    parts: Parts, packed: Packed, hidden: Tensor, hides: Tensor | None, kept: Kept, group: int, out: Tensor
) -> None:
    """Rows keep different heads: those that keep a run of them are gathered, and what it gives is added back."""
    for first, end, rows in runs(kept):
        chosen, places = _gather(hidden, rows)
        heads = slice(first * group, end * group)
        made = _project(packed, chosen, heads.start, heads.stop, parts.head_size)
        seen = _attention(made, _seen_by(hides, heads, places))
        some = slice(heads.start * parts.head_size, heads.stop * parts.head_size)
        _add(out, seen, packed.out[some], places)


def _project(packed: Packed, inputs: Tensor, first: int, end: int, size: int) -> Tensor:
    """Query, key and value of some heads, (rows, length, heads, 3, head size)."""
    some = slice(first * 3 * size, end * 3 * size)
    made = functional.linear(inputs, packed.heads[some], _some(packed.bias, some))
    return made.view(*inputs.shape[:2], end - first, 3, size)


def _attention(made: Tensor, hides: Tensor | None) -> Tensor:
    query, key, value = made.permute(3, 0, 2, 1, 4)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=hides).transpose(1, 2).flatten(2)


def feed_kept(parts: Parts, hidden: Tensor, kept: Kept, block: int, packed: Packed) -> Tensor:
    """The feed-forward block behind its LayerNorm, from the blocks of channels that each row keeps."""
    out = _start(parts.down.bias, hidden)
    found = [(slice(first * block, end * block), rows) for first, end, rows in runs(kept)]
    tokens = [hidden.shape[1] * (len(hidden) if rows is None else len(rows)) for _, rows in found]
    sizes = [count * (some.stop - some.start) for count, (some, _) in zip(tokens, found, strict=True)]
    flat = hidden.new_empty(sum(sizes))  # all runs behind one another: the activation is one operation
    places = []
    for part, count, (some, rows) in zip(flat.split_with_sizes(sizes), tokens, found, strict=True):
        chosen, place = _gather(hidden, rows)
        _product(chosen, parts.up.weight[some], _some(parts.up.bias, some), part.view(count, -1))
        places.append(place)
    for part, place, (some, _) in zip(parts.act(flat).split_with_sizes(sizes), places, found, strict=True):
        inner = part.view(-1, hidden.shape[1], some.stop - some.start)
        _add(out, inner, packed.down[some], place)
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


def _product(inputs: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """What a part of a linear layer makes of all tokens, written to where it belongs."""
    flat = inputs.reshape(-1, inputs.shape[-1])
    if bias is None:
        torch.mm(flat, weight.T, out=out)
    else:
        torch.addmm(bias, flat, weight.T, out=out)


def _some(bias: Tensor | None, some: slice) -> Tensor | None:
    return None if bias is None else bias[some]


def _gather(hidden: Tensor, rows: NDArray[np.int64] | None) -> tuple[Tensor, Tensor | None]:
    if rows is None:
        return hidden, None
    places = torch.from_numpy(rows).to(hidden.device)
    return hidden.index_select(0, places), places


def _add(out: Tensor, inner: Tensor, weight: Tensor, places: Tensor | None) -> None:
    """Add what a part of a linear layer makes of its inputs, for all rows or for some."""
    if places is None:
        flat = out.view(-1, out.shape[-1])
        flat.addmm_(inner.reshape(-1, inner.shape[-1]), weight)
    else:
        out.index_add_(0, places, inner @ weight)
