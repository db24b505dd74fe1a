"""Training of exit heads that imitate the full model, on stored encoder states: no labels, no encoder passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offramp.answers import AnswerType
from offramp.core.machine import half_precision
from offramp.core.progress import Progress
from offramp.errors import BadValue
from offramp.model.exits import Head
from offramp.training.imitation.states import States

__all__ = ["ImitationOptions", "default_epochs", "imitate"]

TARGET_ROWS, TARGET_TOKENS = 134_000, 16.0  # training rows over all epochs, if they have at most so many tokens
MIN_EPOCHS, MAX_EPOCHS = 3, 24
POOL = 50  # batches whose rows are sorted by length together
PARTS = 4  # of a batch of whole examples, each with rows of similar length: less padding
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


def default_epochs(rows: int, tokens: float = TARGET_TOKENS) -> int:
    """Return the number of epochs: more for fewer rows, and fewer for rows with many tokens, which take longer."""
    target = TARGET_ROWS * min(1.0, (TARGET_TOKENS / max(1.0, tokens)) ** 0.5)
    return int(np.clip(round(target / max(1, rows)), MIN_EPOCHS, MAX_EPOCHS))


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
    tokens = 0.0 if answer_type.compares_rows else states.mean_length
    epochs = default_epochs(rows, tokens) if options.epochs is None else options.epochs
    batch_size = options.batch_size * (GROUP_ROWS if answer_type.compares_rows else 1)
    steps = max(1, int(np.ceil(epochs * rows / batch_size)))
    torch.manual_seed(options.seed)
    norms = nn.ModuleList(_input_norms(heads)).requires_grad_(False)  # a step takes less time without gradients
    parameters = [value for head in heads for value in head.parameters() if value.requires_grad]
    device = parameters[0].device
    in_bfloat16 = device.type == "cpu" and half_precision()["bfloat16"]  # 1.6 times as fast
    dtype = torch.bfloat16 if in_bfloat16 else torch.float32
    optimizer = torch.optim.AdamW(parameters, options.learning_rate, weight_decay=options.weight_decay, fused=True)
    for head in heads:
        head.train()
    start, step, fraction = time.monotonic(), 0, 0.0
    random = np.random.default_rng(options.seed)
    batches = _batches(states.lengths, batch_size, steps, random)
    if answer_type.compares_rows:
        batches = _batches_of_groups(states, batch_size, steps, random)
    with Progress("Training the exits", 100, "%") as progress:
        for batch in batches:
            warmup = min(1.0, (step + 1) / max(1, options.warmup * steps))
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * warmup * (1 - fraction)
            with torch.autocast(device.type, torch.bfloat16, enabled=in_bfloat16):
                logits = _exit_logits(heads, states, batch, dtype, answer_type)
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
    norms.requires_grad_(True)
    for head in heads:
        head.eval()
    if not all(bool(value.isfinite().all()) for value in parameters):
        raise BadValue("Training of the exit heads diverged: a weight is not finite. Try a lower learning rate.")
    return step * batch_size / rows


def _input_norms(heads: Sequence[Head]) -> list[nn.LayerNorm]:
    """Return the norms directly before linear layers, which learn nothing that the linear layers cannot."""
    return [head.input_norm for head in heads if head.input_norm is not None and head.reader is not None]


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


def _exit_logits(
    heads: Sequence[Head], states: States, batch: NDArray[np.int64], dtype: torch.dtype, answer_type: AnswerType
) -> list[Tensor]:
    """Return the outputs of every head for the rows of a batch, or for their tokens.

    Rows that are compared run in parts of similar length.
    """
    outputs, parts = [], PARTS if answer_type.compares_rows else 1
    device = next(heads[0].parameters()).device
    for rows in np.array_split(batch, parts) if len(batch) > parts else [batch]:
        encoder_states = states.encoder_states(rows, device, dtype)
        logits = [head(head.features(state)) for head, state in zip(heads, encoder_states, strict=True)]
        outputs.append([output[encoder_states[0].real] for output in logits] if answer_type.per_token else logits)
    return [torch.cat(logits) for logits in zip(*outputs, strict=True)]


def _batches_of_groups(
    states: States, size: int, steps: int, random: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield `steps` batches of about `size` rows that hold whole examples, reshuffled in every epoch.

    The rows of a batch are sorted by length.
    """
    examples = states.rows
    order = np.argsort(examples, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(examples[order])) + 1)
    while steps > 0:
        batch: list[NDArray[np.int64]] = []
        for index in random.permutation(len(groups)):
            batch.append(groups[index])
            if sum(map(len, batch)) >= size and steps > 0:
                yield _by_length(np.concatenate(batch), states.lengths)
                batch, steps = [], steps - 1
        if batch and steps > 0:
            yield _by_length(np.concatenate(batch), states.lengths)
            steps -= 1


def _by_length(rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows[np.argsort(lengths[rows], kind="stable")]
