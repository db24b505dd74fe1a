"""Fixed-size summaries of the start and end logits of a window.

Every exit has two logits per token, so rows differ in length. `summarize_tokens` reduces them, on their device, to
a row of fixed size, which is all that policies and traces see: the best span with its confidence, and the best starts
and ends, from which a question's windows are combined. Position 0, the first token, stands for "no answer".

| columns      |                                                                                      |
|--------------|--------------------------------------------------------------------------------------|
| `CHOICE`     | start and end of the most probable span, both 0 for no answer: patience compares this |
| `ENTROPY` …  | mean entropy of start and end; probability of the span; margin over the runner-up    |
| `NULL`       | start and end logit of position 0                                                    |
| `BEST`       | start + end logit of the best span of the context, its probability, start and end    |
| `STARTS` …   | the best starts and their logits, the best ends and their logits; −1 if there are fewer |
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from offramp.answers.softmax import log_softmax

__all__ = [
    "BEST",
    "CHOICE",
    "CONFIDENCE",
    "ENDS",
    "END_LOGITS",
    "ENTROPY",
    "MARGIN",
    "MASKED_LOGIT",
    "MAX_ANSWER_TOKENS",
    "NULL",
    "N_BEST",
    "POSITIONS",
    "STARTS",
    "START_LOGITS",
    "WIDTH",
    "default_marks",
    "summarize_tokens",
]

N_BEST = 20  # starts and ends in a summary
MAX_ANSWER_TOKENS = 30
POSITIONS = 512  # maximum number of positions in an entropy
MASKED_LOGIT = -1e4  # logit of impossible positions: finite, and 0 after a softmax

CHOICE, ENTROPY, CONFIDENCE, MARGIN, NULL = slice(0, 2), 2, 3, 4, slice(5, 7)
BEST = slice(7, 11)
STARTS, START_LOGITS, ENDS, END_LOGITS = (slice(11 + N_BEST * i, 11 + N_BEST * (i + 1)) for i in range(4))
WIDTH = 11 + 4 * N_BEST


def default_marks(real: Tensor) -> Tensor:
    """Return marks that allow answers at every real token except the first."""
    marks = 3 * real.long()
    marks[:, 0] = 0
    return marks


def summarize_tokens(logits: Tensor, marks: Tensor) -> Tensor:
    """Return the summary of each row, (rows, WIDTH) in float32; `logits` is (rows, tokens, 2).

    `marks` (rows, tokens) is 0 where an answer can neither start nor end, 1 where it can end, 3 where it can start
    too. The first token, "no answer", is part of every softmax.
    """
    logits = logits.float()
    if logits.shape[1] < N_BEST:
        logits = functional.pad(logits, (0, 0, 0, N_BEST - logits.shape[1]), value=MASKED_LOGIT)
        marks = functional.pad(marks, (0, N_BEST - marks.shape[1]))
    null = logits[:, :1]
    positions, scores, log_probs, entropies = [], [], [], []
    for side, min_mark in ((0, 3), (1, 1)):
        masked = logits[..., side].masked_fill(marks < min_mark, MASKED_LOGIT)
        distribution = log_softmax(torch.cat([null[..., side], masked[:, 1:]], dim=1), dim=1)
        entropies.append(-(distribution.exp() * distribution.clamp_min(MASKED_LOGIT)).sum(1))
        best, indices = torch.sort(masked, dim=1, descending=True, stable=True)
        best, indices = best[:, :N_BEST], indices[:, :N_BEST]
        best_log_probs = distribution.gather(1, indices).masked_fill(best <= MASKED_LOGIT, MASKED_LOGIT)
        log_probs.append((distribution[:, 0], best_log_probs))
        positions.append(indices.masked_fill(best <= MASKED_LOGIT, -1))
        scores.append(best)
    (starts, ends), (null_log_prob, span_log_probs) = positions, _pair_log_probs(log_probs)
    possible = (starts[:, :, None] >= 0) & (ends[:, None, :] >= starts[:, :, None])
    possible &= ends[:, None, :] - starts[:, :, None] < MAX_ANSWER_TOKENS
    span_log_probs = span_log_probs.masked_fill(~possible, 2 * MASKED_LOGIT).flatten(1)
    first, second = span_log_probs.topk(2, dim=1).values.unbind(1)
    best = span_log_probs.argmax(1)
    start, end = starts.gather(1, (best // N_BEST)[:, None]), ends.gather(1, (best % N_BEST)[:, None])
    is_span = (first > null_log_prob)[:, None]
    choice = torch.where(is_span, torch.cat([start, end], 1), torch.zeros_like(torch.cat([start, end], 1)))
    top = torch.maximum(first, null_log_prob)
    runner_up = torch.maximum(second, torch.minimum(first, null_log_prob))
    best_score = (scores[0][:, :, None] + scores[1][:, None, :]).flatten(1).gather(1, best[:, None])
    columns = [
        choice.float(),
        ((entropies[0] + entropies[1]) / 2).clamp_min(0)[:, None],
        top.exp()[:, None],
        (top.exp() - runner_up.exp())[:, None],
        null[:, 0],
        best_score,
        first.exp()[:, None],
        start.float(),
        end.float(),
        starts.float(),
        scores[0],
        ends.float(),
        scores[1],
    ]
    return torch.cat(columns, dim=1)


def _pair_log_probs(log_probs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the log-probability of no answer, (rows,), and of the best start-end pairs, (rows, N_BEST, N_BEST)."""
    (null_start, starts), (null_end, ends) = log_probs
    return null_start + null_end, starts[:, :, None] + ends[:, None, :]
