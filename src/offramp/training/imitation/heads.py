"""Training of exit heads that imitate the full model, on stored encoder states: no labels, no encoder passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offramp.answers import AnswerType
from offramp.core.machine import half_precision
from offramp.core.progress import Progress
from offramp.errors import BadValue
from offramp.model.exits import Head
from offramp.training.imitation.states import States

__all__ = ["ImitationOptions", "default_epochs", "imitate"]

TARGET_ROWS = 134_000  # training rows over all epochs
MIN_EPOCHS, MAX_EPOCHS = 3, 24
POOL = 50  # batches whose rows are sorted by length together
GROUP_ROWS = 2  # batches of whole examples are this many times larger


@dataclass(frozen=True)
class ImitationOptions:
    """Hyperparameters of the heads' training."""

    epochs: float | None = None
    minutes: float | None = None  # maximum
    variations: int | None = None  # per text, see `variations.py`; None: as many as fit
    batch_size: int = 64
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.01
    warmup: float = 0.06
    seed: int = 42


def default_epochs(rows: int) -> int:
    """Return the number of epochs for this many rows: more for fewer rows."""
    return int(np.clip(round(TARGET_ROWS / max(1, rows)), MIN_EPOCHS, MAX_EPOCHS))


def imitate(
    heads: Sequence[Head],
    states: States,
    answer_type: AnswerType,
    options: ImitationOptions,
    on_step: Callable[[float], None] = lambda loss: None,
    labels: Tensor | None = None,
    label_weight: float = 0.0,
) -> float:
    """Train the heads of the early exits, shallow to deep; return the number of epochs.

    `on_step` is called with the loss after each step. `label_weight` is the weight of the loss on the labels, if there
    are labels.
    """

    def head_loss(logits: Tensor, batch: NDArray[np.int64]) -> Tensor:
        examples = torch.from_numpy(states.rows[batch]).to(device)
        soft = answer_type.imitation_loss(logits, states.teacher_of(batch).to(device), examples)
        if labels is None or not label_weight:
            return soft
        return (1 - label_weight) * soft + label_weight * answer_type.loss(logits, labels[batch].to(device))

    rows = len(states.lengths)
    epochs = default_epochs(rows) if options.epochs is None else options.epochs
    batch_size = options.batch_size * (GROUP_ROWS if answer_type.compares_rows else 1)
    steps = max(1, int(np.ceil(epochs * rows / batch_size)))
    torch.manual_seed(options.seed)
    parameters = [value for head in heads for value in head.parameters()]
    device = parameters[0].device
    in_bfloat16 = device.type == "cpu" and half_precision()["bfloat16"]  # 1.6 times as fast
    optimizer = torch.optim.AdamW(parameters, options.learning_rate, weight_decay=options.weight_decay, fused=True)
    for head in heads:
        head.train()
    start, step, fraction = time.monotonic(), 0, 0.0
    random = np.random.default_rng(options.seed)
    batches = _batches(states.lengths, batch_size, steps, random)
    if answer_type.compares_rows:
        batches = _batches_of_groups(states.rows, batch_size, steps, random)
    with Progress("Training the exits", 100, "%") as progress:
        for batch in batches:
            warmup = min(1.0, (step + 1) / max(1, options.warmup * steps))
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * warmup * (1 - fraction)
            encoder_states = states.encoder_states(batch, device)
            with torch.autocast(device.type, torch.bfloat16, enabled=in_bfloat16):
                logits = [head(head.features(state)) for head, state in zip(heads, encoder_states, strict=True)]
            if answer_type.per_token:
                logits = [output[encoder_states[0].real] for output in logits]
            loss = torch.stack([head_loss(output.float(), batch) for output in logits]).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, 1.0 * len(heads))
            optimizer.step()
            step += 1
            elapsed = 0.0 if options.minutes is None else (time.monotonic() - start) / (60 * options.minutes)
            fraction = max(step / steps, elapsed)  # the learning rate reaches 0 when either limit is reached
            on_step(float(loss.detach()) / len(heads))
            progress.reach(min(1.0, fraction))
            if fraction >= 1:
                break
    for head in heads:
        head.eval()
    if not all(bool(value.isfinite().all()) for value in parameters):
        raise BadValue("Training of the exit heads diverged: a weight is not finite. Try a lower learning rate.")
    return step * batch_size / rows


def _batches(
    lengths: NDArray[np.int64], size: int, steps: int, random: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield `steps` batches of rows of similar length, reshuffled in every epoch."""
    while steps > 0:
        order = random.permutation(len(lengths))
        batches: list[NDArray[np.int64]] = []
        for start in range(0, len(order), size * POOL):
            pool = order[start : start + size * POOL]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches += [pool[first : first + size] for first in range(0, len(pool), size)]
        for index in random.permutation(len(batches))[:steps]:
            yield batches[index]
        steps -= len(batches)


def _batches_of_groups(
    examples: NDArray[np.int64], size: int, steps: int, random: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield `steps` batches of about `size` rows that hold whole examples, reshuffled in every epoch."""
    order = np.argsort(examples, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(examples[order])) + 1)
    while steps > 0:
        batch: list[NDArray[np.int64]] = []
        for index in random.permutation(len(groups)):
            batch.append(groups[index])
            if sum(map(len, batch)) >= size and steps > 0:
                yield np.concatenate(batch)
                batch, steps = [], steps - 1
        if batch and steps > 0:
            yield np.concatenate(batch)
            steps -= 1
