"""Softmax over a few numbers per row, as exit decisions need it.

`torch.softmax` and `torch.log_softmax` divide even two rows among torch's threads. Waking the threads takes longer than
a layer of a small model, and while they wait they take CPU time from the runtime's threads. The operations here stay on
the calling thread for small tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["log_softmax", "softmax"]


def softmax(logits: Tensor, dim: int = -1) -> Tensor:
    """Return the probabilities along a dimension."""
    exponentials = torch.exp(logits - logits.amax(dim, keepdim=True))
    return exponentials / exponentials.sum(dim, keepdim=True)


def log_softmax(logits: Tensor, dim: int = -1) -> Tensor:
    """Return the logarithms of the probabilities along a dimension."""
    shifted = logits - logits.amax(dim, keepdim=True)
    return shifted - torch.exp(shifted).sum(dim, keepdim=True).log()
