"""Predictors that say per row which heads and channels of a layer run, and how their answers become masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from offramp.originals.width.spec import Width

__all__ = ["Gate", "Gates"]

INNER = 64  # units inside a predictor, whatever the encoder's size
TINY = 1e-8  # keeps the noise finite

Draw = Callable[[Tensor], Tensor]  # uniform noise of a tensor's shape


class Gate(nn.Module):
    """One predictor: a vector per row in, a logit per unit out, and from it a mask of ones and zeros."""

    def __init__(self, size: int, units: int, eps: float, mode: str, prune: float, faithful: bool = False):
        super().__init__()
        self.reduce = nn.Linear(size, INNER)
        self.norm = nn.BatchNorm1d(INNER, eps=eps)
        self.expand = nn.Linear(INNER, units)
        self.mode, self.prune, self.faithful = mode, prune, faithful
        self.draw: Draw = torch.rand_like
        self._fold: Any = None

    def forward(self, read: Tensor) -> Tensor:
        """The logits, (rows, units)."""
        if self.training or torch.is_grad_enabled():
            return self.expand(torch.relu(self._normed(self.reduce(read))))
        return self.expand(torch.relu(nn.functional.linear(read, *self._folded())))

    def _folded(self) -> tuple[Tensor, Tensor]:
        """The first layer with the norm's numbers in it: one small product less where only answers are wanted."""
        norm = self.norm
        assert norm.running_mean is not None and norm.running_var is not None
        parts = [self.reduce.weight, self.reduce.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var]
        now = [(part.data_ptr(), 0 if part.is_inference() else part._version) for part in parts]
        if self._fold is None or self._fold[0] != now:
            scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
            bias = (self.reduce.bias - norm.running_mean) * scale + norm.bias
            self._fold = (now, (self.reduce.weight * scale[:, None], bias))
        folded: tuple[Tensor, Tensor] = self._fold[1]
        return folded

    def _normed(self, inner: Tensor) -> Tensor:
        if self.norm.training and len(inner) == 1 and not self.faithful:
            norm = self.norm  # one row has no variance of its own
            assert norm.running_mean is not None and norm.running_var is not None
            return nn.functional.batch_norm(
                inner, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
            )
        return self.norm(inner)

    def mask(self, logits: Tensor) -> Tensor:
        """1 for what a row keeps, 0 for the rest; in training with the gradient of a soft choice."""
        if self.mode == "topk":
            return _TopK.apply(logits, int(self.prune * logits.shape[-1]))  # type: ignore[no-untyped-call]
        if not self.training:
            return (logits >= 0).to(logits.dtype)
        noise = self.draw(logits)
        soft = torch.sigmoid(logits + torch.log(noise + TINY) - torch.log(1 - noise + TINY))
        return ((soft >= 0.5).to(soft.dtype) - soft).detach() + soft


class _TopK(torch.autograd.Function):
    """All but the `count` lowest, and whatever ties with the last of them; the gradient passes as it comes."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, count: int) -> Tensor:
        if count == 0:
            return torch.ones_like(logits)
        highest_pruned = logits.kthvalue(count, dim=-1, keepdim=True).values
        return (logits > highest_pruned).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Gates(nn.ModuleDict):
    """Two gates per layer, `gates.<layer>.heads` and `.channels`, layers counted from 1."""

    def __init__(self, width: Width, layers: int, size: int, heads: int, channels: int, eps: float, faithful: bool):
        super().__init__()
        width.check(heads, channels)
        self.width = width
        self.skips = "auto"  # what is pruned is left out where that is faster; always, never: for tests and benchmarks
        self.packed: dict[int, Any] = {}  # heads' weights as skipping reads them, by layer; not saved
        for layer in range(1, layers + 1):
            prune = width.prune
            self[str(layer)] = nn.ModuleDict(
                {
                    "heads": Gate(size, heads // width.head_group, eps, width.heads, prune, faithful),
                    "channels": Gate(size, channels // width.block, eps, width.channels, prune, faithful),
                }
            )

    def of(self, layer: int) -> tuple[Gate, Gate]:
        """The heads' and the channels' gate of a layer, from 1."""
        both = self[str(layer)]
        assert isinstance(both, nn.ModuleDict)
        heads, channels = both["heads"], both["channels"]
        assert isinstance(heads, Gate) and isinstance(channels, Gate)
        return heads, channels
