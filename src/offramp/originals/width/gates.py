"""Gates: small predictors that select the heads and channels of a layer for each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from offramp.originals.width.spec import Width

__all__ = ["Gate", "Gates"]

INNER = 64  # hidden units of a predictor, for any encoder size
EPSILON = 1e-8  # keeps the noise finite

Draw = Callable[[Tensor], Tensor]  # uniform noise of a tensor's shape


class Gate(nn.Module):
    """A predictor: from one vector per row, one logit per unit, and from the logits a mask of ones and zeros."""

    def __init__(self, size: int, units: int, eps: float, mode: str, prune: float, faithful: bool = False):
        super().__init__()
        self.reduce = nn.Linear(size, INNER)
        self.norm = nn.BatchNorm1d(INNER, eps=eps)
        self.expand = nn.Linear(INNER, units)
        self.mode, self.prune, self.faithful = mode, prune, faithful
        self.draw: Draw = torch.rand_like
        self._fold_cache: Any = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, (rows, units)."""
        if self.training or torch.is_grad_enabled():
            return self.expand(torch.relu(self._normalize(self.reduce(inputs))))
        return self.expand(torch.relu(nn.functional.linear(inputs, *self._folded())))

    def _folded(self) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the first layer with the batch norm folded in, for inference; cached."""
        norm = self.norm
        assert norm.running_mean is not None and norm.running_var is not None
        tensors = [self.reduce.weight, self.reduce.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var]
        versions = [(tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors]
        if self._fold_cache is None or self._fold_cache[0] != versions:
            scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
            bias = (self.reduce.bias - norm.running_mean) * scale + norm.bias
            self._fold_cache = (versions, (self.reduce.weight * scale[:, None], bias))
        folded: tuple[Tensor, Tensor] = self._fold_cache[1]
        return folded

    def _normalize(self, inner: Tensor) -> Tensor:
        if self.norm.training and len(inner) == 1 and not self.faithful:
            norm = self.norm  # a single row has no variance: use the running statistics
            assert norm.running_mean is not None and norm.running_var is not None
            return nn.functional.batch_norm(
                inner, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
            )
        return self.norm(inner)

    def mask(self, logits: Tensor) -> Tensor:
        """Return 1 for the units that a row keeps, 0 for the rest; in training with the gradient of a soft mask."""
        if self.mode == "topk":
            return _TopK.apply(logits, int(self.prune * logits.shape[-1]))  # type: ignore[no-untyped-call]
        if not self.training:
            return (logits >= 0).to(logits.dtype)
        noise = self.draw(logits)
        soft = torch.sigmoid(logits + torch.log(noise + EPSILON) - torch.log(1 - noise + EPSILON))
        return ((soft >= 0.5).to(soft.dtype) - soft).detach() + soft


class _TopK(torch.autograd.Function):
    """Keep all but the `count` lowest logits and those tied with the last of them; straight-through gradient."""

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
    """Two gates per layer, `gates.<layer>.heads` and `gates.<layer>.channels`, with layers from 1."""

    def __init__(self, width: Width, layers: int, size: int, heads: int, channels: int, eps: float, faithful: bool):
        super().__init__()
        width.check(heads, channels)
        self.width = width
        self.skipping = "auto"  # skip pruned units if that is faster; "always", "never": for tests and benchmarks
        self.packed: dict[int, Any] = {}  # weights packed for skipping, by layer; not saved
        for layer in range(1, layers + 1):
            prune = width.prune
            self[str(layer)] = nn.ModuleDict(
                {
                    "heads": Gate(size, heads // width.head_group, eps, width.heads, prune, faithful),
                    "channels": Gate(size, channels // width.block, eps, width.channels, prune, faithful),
                }
            )

    def of_layer(self, layer: int) -> tuple[Gate, Gate]:
        """Return the head gate and the channel gate of a layer, from 1."""
        gates = self[str(layer)]
        assert isinstance(gates, nn.ModuleDict)
        heads, channels = gates["heads"], gates["channels"]
        assert isinstance(heads, Gate) and isinstance(channels, Gate)
        return heads, channels
