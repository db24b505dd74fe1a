"""The losses of the recipes: pure functions of what the exits said and what was right.

Every function takes an `Outcome` and gives a scalar. Exits are counted from 1; the last one, L, is the full model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from offramp.errors import BadValue
from offramp.exits import exit_loss
from offramp.stepper import Problem

__all__ = [
    "Outcome",
    "by_depth",
    "check_distillation",
    "distillation",
    "early_exits",
    "joint",
    "last_exit",
    "lte",
    "soft_labels",
    "summed_soft_labels",
]


def check_distillation(gamma: float, temperature: float, reduction: str) -> None:
    """Refuse what cannot be meant."""
    if not 0 <= gamma <= 1:
        raise BadValue(f"gamma is {gamma}; it is a share from 0 to 1.")
    if not temperature > 0:
        raise BadValue(f"temperature is {temperature}; it is above 0.")
    if reduction not in ("elements", "rows"):
        raise BadValue(f"reduction is {reduction!r}; say elements or rows.")


@dataclass(frozen=True)
class Outcome:
    """One batch: every exit's logits from shallow to deep, the labels, and LTE's estimates where there are some."""

    logits: Sequence[Tensor]  # L times (rows, classes)
    labels: Tensor  # (rows,) or (rows, labels)
    problem: Problem
    uncertainty: Sequence[Tensor] = ()  # L times (rows,)
    weights: Tensor | None = None  # (classes,)
    smoothing: float = 0.0

    def loss(self, index: int) -> Tensor:
        """One exit's own loss; its index from 0."""
        return exit_loss(self.logits[index], self.labels, self.problem, self.weights, self.smoothing)


def last_exit(outcome: Outcome) -> Tensor:
    """The full model's loss alone: the ordinary baseline, and DeeBERT's first stage."""
    return outcome.loss(-1)


def early_exits(outcome: Outcome) -> Tensor:
    """The plain sum of the early exits' losses, without the last: DeeBERT's second stage (arXiv:2004.12993)."""
    return torch.stack([outcome.loss(index) for index in range(len(outcome.logits) - 1)]).sum()


def joint(outcome: Outcome) -> Tensor:
    """The plain sum of all exits' losses."""
    return torch.stack([outcome.loss(index) for index in range(len(outcome.logits))]).sum()


def by_depth(outcome: Outcome) -> Tensor:
    """Σ j · ℓ_j / (L (L + 1) / 2): deeper exits count more (PABEE, arXiv:2006.04152)."""
    losses = torch.stack([outcome.loss(index) for index in range(len(outcome.logits))])
    weights = torch.arange(1, len(losses) + 1, device=losses.device, dtype=losses.dtype)
    return (weights * losses).sum() / weights.sum()


def soft_labels(outcome: Outcome, temperature: float, reduction: str = "elements") -> Tensor:
    """Σ_i T² · KL(softmax(z_L / T) ‖ softmax(z_i / T)) over the early exits; the teacher z_L is detached.

    RomeBERT (arXiv:2101.09755) takes the mean over rows AND classes (`elements`), so that its weight is smaller by
    the number of classes than that of a KL per row (`rows`). A regression, which the original cannot do, takes the
    squared distance to the teacher; multi-label the KL of each label's yes or no.
    """
    teacher = outcome.logits[-1].detach()
    early = outcome.logits[:-1]
    if outcome.problem is Problem.REGRESSION:
        return torch.stack([functional.mse_loss(one, teacher) for one in early]).sum()
    if outcome.problem is Problem.MULTI_LABEL:
        teacher, early = _yes_or_no(teacher), [_yes_or_no(one) for one in early]
    target = torch.log_softmax(teacher / temperature, dim=-1)
    parts = [target.exp() * (target - torch.log_softmax(one / temperature, dim=-1)) for one in early]
    each = [part.mean() if reduction == "elements" else part.sum(-1).mean() for part in parts]
    return temperature**2 * torch.stack(each).sum()


def _yes_or_no(logits: Tensor) -> Tensor:
    """A label's logit as two classes, each label a row of its own."""
    flat = logits.reshape(-1)
    return torch.stack([flat, torch.zeros_like(flat)], dim=-1)


def distillation(outcome: Outcome, gamma: float, temperature: float, reduction: str = "elements") -> Tensor:
    """(1 − γ) Σ ℓ_i + γ · `soft_labels`: the early exits' part of RomeBERT, and DeeBERT+SD's second stage."""
    return (1 - gamma) * early_exits(outcome) + gamma * soft_labels(outcome, temperature, reduction)


def summed_soft_labels(outcome: Outcome, batch: int | None = None) -> Tensor:
    """BERxiT's distillation: Σ over early exits AND rows of the cross-entropy with the last exit's softmax.

    A sum over rows grows with the batch beside the mean losses; with `batch` it weighs what it would in a batch of that
    size, whatever the size.
    """
    target = torch.softmax(outcome.logits[-1].detach(), dim=-1)
    total = torch.stack([functional.cross_entropy(one, target, reduction="sum") for one in outcome.logits[:-1]]).sum()
    return total if batch is None else total * (batch / len(target))


def lte(outcome: Outcome) -> Tensor:
    """BERxiT's J: the mean over exits and rows of (estimate − target)², gradients into features and all.

    The target is 1 where the exit is wrong, else 0; in a regression |tanh(z − y)|; multi-label: the share of labels
    that are wrong.
    """
    estimates = torch.stack(list(outcome.uncertainty))  # (L, rows)
    logits = torch.stack([one.detach() for one in outcome.logits])  # (L, rows, classes)
    if outcome.problem is Problem.REGRESSION:
        targets = (logits.squeeze(-1) - outcome.labels.to(logits.dtype).view(-1)).tanh().abs()
    elif outcome.problem is Problem.MULTI_LABEL:
        targets = ((logits > 0) != outcome.labels.bool()).to(logits.dtype).mean(-1)
    else:
        targets = (logits.argmax(-1) != outcome.labels.view(-1)).to(logits.dtype)
    return ((estimates - targets) ** 2).mean()
