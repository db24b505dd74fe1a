"""The losses of the recipes: pure functions of what the exits said and what was right.

Every function takes a `BatchOutputs` and gives a scalar. Exits are counted from 1; the last one, L, is the full model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from offramp.answers import AnswerType
from offramp.originals.width.counting import Terms

__all__ = [
    "BatchOutputs",
    "by_depth",
    "distillation",
    "early_exits",
    "joint",
    "last_exit",
    "lte",
    "narrowing",
    "soft_labels",
    "summed_soft_labels",
]


@dataclass(frozen=True)
class BatchOutputs:
    """One batch: every exit's logits from shallow to deep, the labels, and LTE's estimates where there are some."""

    logits: Sequence[Tensor]  # L times (rows, classes)
    labels: Tensor  # (rows,) or (rows, labels)
    answer_type: AnswerType
    uncertainty: Sequence[Tensor] = ()  # L times (rows,)
    weights: Tensor | None = None  # (classes,)
    smoothing: float = 0.0
    width: Terms | None = None  # with gates: what pulls them to their target

    def loss(self, index: int) -> Tensor:
        """One exit's own loss; its index from 0."""
        return self.answer_type.loss(self.logits[index], self.labels, self.weights, self.smoothing)


def last_exit(batch: BatchOutputs) -> Tensor:
    """The full model's loss alone: the ordinary baseline, and DeeBERT's first stage."""
    return batch.loss(-1)


def narrowing(batch: BatchOutputs) -> Tensor:
    """EBERT's three terms: the operations saved, and each layer's heads and channels, against the target."""
    if batch.width is None:
        raise AssertionError("a model without gates has no width")
    return batch.width.total


def early_exits(batch: BatchOutputs) -> Tensor:
    """The plain sum of the early exits' losses, without the last: DeeBERT's second stage (arXiv:2004.12993)."""
    return torch.stack([batch.loss(index) for index in range(len(batch.logits) - 1)]).sum()


def joint(batch: BatchOutputs) -> Tensor:
    """The plain sum of all exits' losses."""
    return torch.stack([batch.loss(index) for index in range(len(batch.logits))]).sum()


def by_depth(batch: BatchOutputs) -> Tensor:
    """Σ j · ℓ_j / (L (L + 1) / 2): deeper exits count more (PABEE, arXiv:2006.04152)."""
    losses = torch.stack([batch.loss(index) for index in range(len(batch.logits))])
    weights = torch.arange(1, len(losses) + 1, device=losses.device, dtype=losses.dtype)
    return (weights * losses).sum() / weights.sum()


def soft_labels(batch: BatchOutputs, temperature: float, reduction: str = "elements") -> Tensor:
    """Σ_i of what the last exit's logits, detached, ask of early exit i (RomeBERT, arXiv:2101.09755).

    `elements` is the original's mean over rows AND classes, so that its weight is smaller by the number of classes
    than that of a KL per row (`rows`).
    """
    teacher = batch.logits[-1].detach()
    per_row = reduction == "rows"
    each = [batch.answer_type.imitation(logits, teacher, temperature, per_row) for logits in batch.logits[:-1]]
    return torch.stack(each).sum()


def distillation(batch: BatchOutputs, gamma: float, temperature: float, reduction: str = "elements") -> Tensor:
    """(1 − γ) Σ ℓ_i + γ · `soft_labels`: the early exits' part of RomeBERT, and DeeBERT+SD's second stage."""
    return (1 - gamma) * early_exits(batch) + gamma * soft_labels(batch, temperature, reduction)


def summed_soft_labels(batch: BatchOutputs, size: int | None = None) -> Tensor:
    """BERxiT's distillation: Σ over early exits AND rows of the cross-entropy with the last exit's softmax.

    A sum over rows grows with the batch beside the mean losses; with `size` it weighs what it would in a batch of
    that many rows, whatever the batch.
    """
    *early, last = (batch.answer_type.apart(logits) for logits in batch.logits)
    target = torch.softmax(last.detach(), dim=-1)
    total = torch.stack([functional.cross_entropy(logits, target, reduction="sum") for logits in early]).sum()
    return total if size is None else total * (size / len(batch.logits[-1]))


def lte(batch: BatchOutputs) -> Tensor:
    """BERxiT's J: the mean over exits and rows of (estimate − how wrong the exit is)²; the features learn, too."""
    estimates = torch.stack(list(batch.uncertainty))  # (L, rows)
    logits = torch.stack([logits.detach() for logits in batch.logits])  # (L, rows, classes)
    return ((estimates - batch.answer_type.error_target(logits, batch.labels)) ** 2).mean()
