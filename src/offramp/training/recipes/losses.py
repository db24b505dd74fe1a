"""Losses of the recipes: pure functions of the exits' outputs and the labels.

Every function takes a `BatchOutputs` and returns a scalar. Exits are numbered from 1; the last exit, L, is the full
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from offramp.answers import AnswerType
from offramp.originals.width.flops import WidthLoss

__all__ = [
    "BatchOutputs",
    "depth_weighted",
    "distillation",
    "early_exits",
    "gate_loss",
    "joint",
    "last_exit",
    "lte",
    "soft_labels",
    "summed_soft_labels",
]


@dataclass(frozen=True)
class BatchOutputs:
    """One batch: the logits of every exit from shallow to deep, the labels, and optional extras."""

    logits: Sequence[Tensor]  # L times (rows, classes)
    labels: Tensor  # (rows,) or (rows, labels)
    answer_type: AnswerType
    uncertainty: Sequence[Tensor] = ()  # L times (rows,), estimates of the learning-to-exit module
    weights: Tensor | None = None  # (classes,)
    smoothing: float = 0.0
    width: WidthLoss | None = None  # loss terms of the gates

    def loss(self, index: int) -> Tensor:
        """Return the loss of one exit, by its index from 0."""
        return self.answer_type.loss(self.logits[index], self.labels, self.weights, self.smoothing)


def last_exit(batch: BatchOutputs) -> Tensor:
    """The full model's loss alone: ordinary fine-tuning, and DeeBERT's first stage."""
    return batch.loss(-1)


def gate_loss(batch: BatchOutputs) -> Tensor:
    """EBERT's three terms: distance from the target of the operations, and of each layer's heads and channels."""
    if batch.width is None:
        raise AssertionError("gate_loss needs a model with gates")
    return batch.width.total


def early_exits(batch: BatchOutputs) -> Tensor:
    """The sum of the early exits' losses, without the last exit: DeeBERT's second stage (arXiv:2004.12993)."""
    return torch.stack([batch.loss(index) for index in range(len(batch.logits) - 1)]).sum()


def joint(batch: BatchOutputs) -> Tensor:
    """The sum of all exits' losses."""
    return torch.stack([batch.loss(index) for index in range(len(batch.logits))]).sum()


def depth_weighted(batch: BatchOutputs) -> Tensor:
    """Σ j · ℓ_j / (L (L + 1) / 2): deeper exits count more (PABEE, arXiv:2006.04152)."""
    losses = torch.stack([batch.loss(index) for index in range(len(batch.logits))])
    weights = torch.arange(1, len(losses) + 1, device=losses.device, dtype=losses.dtype)
    return (weights * losses).sum() / weights.sum()


def soft_labels(batch: BatchOutputs, temperature: float, reduction: str = "elements") -> Tensor:
    """The sum of the early exits' distillation losses, with the last exit as teacher (RomeBERT, arXiv:2101.09755).

    `elements` is the original's mean over rows AND classes, which is smaller than the KL per row (`rows`) by a factor
    of the number of classes.
    """
    teacher = batch.logits[-1].detach()
    per_row = reduction == "rows"
    early = batch.logits[:-1]
    losses = [batch.answer_type.distillation_loss(logits, teacher, temperature, per_row) for logits in early]
    return torch.stack(losses).sum()


def distillation(batch: BatchOutputs, gamma: float, temperature: float, reduction: str = "elements") -> Tensor:
    """(1 − γ) Σ ℓ_i + γ · `soft_labels`: the early exits' part of RomeBERT, and DeeBERT+SD's second stage."""
    return (1 - gamma) * early_exits(batch) + gamma * soft_labels(batch, temperature, reduction)


def summed_soft_labels(batch: BatchOutputs, size: int | None = None) -> Tensor:
    """BERxiT's distillation: Σ over early exits AND rows of the cross-entropy with the last exit's softmax.

    A sum over rows grows with the batch size, while the other losses are means. `size` rescales it to a batch of that
    many rows.
    """
    *early, last = (batch.answer_type.to_class_rows(logits) for logits in batch.logits)
    target = torch.softmax(last.detach(), dim=-1)
    total = torch.stack([functional.cross_entropy(logits, target, reduction="sum") for logits in early]).sum()
    return total if size is None else total * (size / len(batch.logits[-1]))


def lte(batch: BatchOutputs) -> Tensor:
    """BERxiT's J: the mean over exits and rows of (estimate − error)²; its gradient reaches the encoder too."""
    estimates = torch.stack(list(batch.uncertainty))  # (L, rows)
    logits = torch.stack([logits.detach() for logits in batch.logits])  # (L, rows, classes)
    return ((estimates - batch.answer_type.error_target(logits, batch.labels)) ** 2).mean()
