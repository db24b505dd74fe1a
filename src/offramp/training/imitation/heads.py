"""Heads learn to answer as the full model does, from its encoder's states: no labels, no encoder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offramp.answers import AnswerType
from offramp.errors import BadValue
from offramp.model.exits import Head
from offramp.training.imitation.states import States

__all__ = ["ImitationOptions", "imitate", "usual_epochs"]

ENOUGH = 16_000  # rows that heads want to see, whatever the number of texts
FEWEST, MOST = 3, 10  # epochs
POOL = 50  # batches whose rows are sorted by length together


@dataclass(frozen=True)
class ImitationOptions:
    """How the heads are trained."""

    epochs: float | None = None
    minutes: float | None = None  # at most
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.06
    seed: int = 42


def usual_epochs(rows: int) -> int:
    """Few texts are read more often."""
    return int(np.clip(round(ENOUGH / max(1, rows)), FEWEST, MOST))


def imitate(
    heads: Sequence[Head],
    states: States,
    answer_type: AnswerType,
    options: ImitationOptions,
    tell: Callable[[float, float], None] = lambda share, loss: None,
    labels: Tensor | None = None,
    label_weight: float = 0.0,
) -> float:
    """Train the early exits' heads, shallow to deep; returns the epochs that were run. `tell` hears how far it is.

    Where there are labels, they may have a share in the loss (`label_weight`).
    """

    def asked(logits: Tensor, batch: NDArray[np.int64]) -> Tensor:
        soft = answer_type.imitation(logits, states.teacher[batch], 1.0, per_row=True)
        return (
            soft
            if labels is None or not label_weight
            else (1 - label_weight) * soft + label_weight * answer_type.loss(logits, labels[batch])
        )

    rows = len(states.lengths)
    epochs = usual_epochs(rows) if options.epochs is None else options.epochs
    steps = max(1, int(np.ceil(epochs * rows / options.batch_size)))
    torch.manual_seed(options.seed)
    parameters = [value for head in heads for value in head.parameters()]
    optimizer = torch.optim.AdamW(parameters, options.learning_rate, weight_decay=options.weight_decay)
    for head in heads:
        head.train()
    began, step, share = time.monotonic(), 0, 0.0
    drawn = np.random.default_rng(options.seed)
    for batch in _batches(states.lengths, options.batch_size, steps, drawn):
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * min(1.0, (step + 1) / max(1, options.warmup * steps)) * (1 - share)
        loss = torch.stack(
            [
                asked(head(head.features(inside)), batch)
                for head, inside in zip(heads, states.inside(batch), strict=True)
            ]
        ).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0 * len(heads))
        optimizer.step()
        step += 1
        spent = 0.0 if options.minutes is None else (time.monotonic() - began) / (60 * options.minutes)
        share = max(step / steps, spent)  # by the clock, too, the rate has come down when the time is over
        tell(min(1.0, share), float(loss.detach()) / len(heads))
        if share >= 1:
            break
    for head in heads:
        head.eval()
    if not all(bool(value.isfinite().all()) for value in parameters):
        raise BadValue("The heads' training came apart: a weight is not finite. Try a lower learning rate.")
    return step * options.batch_size / rows


def _batches(
    lengths: NDArray[np.int64], size: int, steps: int, drawn: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Batches of like lengths, newly drawn in every epoch."""
    while steps > 0:
        order = drawn.permutation(len(lengths))
        found = []
        for start in range(0, len(order), size * POOL):
            pool = order[start : start + size * POOL]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            found += [pool[place : place + size] for place in range(0, len(pool), size)]
        for place in drawn.permutation(len(found))[:steps]:
            yield found[place]
        steps -= len(found)
