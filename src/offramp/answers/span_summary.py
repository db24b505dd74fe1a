"""A span of a context: where the answer starts and where it ends, or that the context has none.

Every exit gives two logits per token, so rows differ in length. What the loop, the policies and traces see of them is a
summary of fixed size, made where the logits are (`summary`): the best span and how sure it is, and the best starts and
ends, from which a question's answer is made of its windows. Position 0, the first token, stands for "no answer here".

| columns      |                                                                                     |
|--------------|-------------------------------------------------------------------------------------|
| `CHOICE`     | start and end of the likeliest span, both 0 for none: what patience compares          |
| `ENTROPY` …  | the mean of start's and end's entropy; the span's probability; its lead over the next |
| `NULL`       | start and end logit of position 0                                                     |
| `BEST`       | start + end logit of the best span of real tokens, its probability, its start and end |
| `STARTS` …   | the best starts and their logits, the best ends and theirs; −1: there are no more      |
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "BEST",
    "CHOICE",
    "CONFIDENCE",
    "ENDS",
    "END_LOGITS",
    "ENTROPY",
    "LONGEST",
    "LOW",
    "MARGIN",
    "NBEST",
    "NULL",
    "POSITIONS",
    "STARTS",
    "START_LOGITS",
    "WIDTH",
    "anywhere",
    "summary",
]

NBEST = 20  # starts and ends that are kept
LONGEST = 30  # tokens of an answer
POSITIONS = 512  # that an entropy is spread over at most
LOW = -1e4  # the logit of what cannot be: finite, and nothing after a softmax

CHOICE, ENTROPY, CONFIDENCE, MARGIN, NULL = slice(0, 2), 2, 3, 4, slice(5, 7)
BEST = slice(7, 11)
STARTS, START_LOGITS, ENDS, END_LOGITS = (slice(11 + NBEST * i, 11 + NBEST * (i + 1)) for i in range(4))
WIDTH = 11 + 4 * NBEST


def anywhere(real: Tensor) -> Tensor:
    """Marks where nobody said where answers may be: at every real token but the first."""
    marks = 3 * real.long()
    marks[:, 0] = 0
    return marks


def summary(logits: Tensor, marks: Tensor) -> Tensor:
    """What an exit says of each row, (rows, WIDTH) in float32; `logits` are (rows, tokens, 2).

    `marks` (rows, tokens): 0 where no answer can be, 1 where one may end, 3 where one may also start. The first token
    counts in every softmax: it takes what no span gets.
    """
    logits = logits.float()
    if logits.shape[1] < NBEST:
        logits = functional.pad(logits, (0, 0, 0, NBEST - logits.shape[1]), value=LOW)
        marks = functional.pad(marks, (0, NBEST - marks.shape[1]))
    null = logits[:, :1]
    places, scores, chances, entropies = [], [], [], []
    for side, bit in ((0, 2), (1, 1)):
        one = logits[..., side].masked_fill(marks < bit + (bit == 2), LOW)
        whole = torch.log_softmax(torch.cat([null[..., side], one[:, 1:]], dim=1), dim=1)
        entropies.append(-(whole.exp() * whole.clamp_min(LOW)).sum(1))
        best, where = torch.sort(one, dim=1, descending=True, stable=True)
        best, where = best[:, :NBEST], where[:, :NBEST]
        chances.append((whole[:, 0], whole.gather(1, where).masked_fill(best <= LOW, LOW)))
        places.append(where.masked_fill(best <= LOW, -1))
        scores.append(best)
    (starts, ends), (null_chance, span_chance) = places, _pairs(chances)
    possible = (starts[:, :, None] >= 0) & (ends[:, None, :] >= starts[:, :, None])
    possible &= ends[:, None, :] - starts[:, :, None] < LONGEST
    log = span_chance.masked_fill(~possible, 2 * LOW).flatten(1)
    first, second = log.topk(2, dim=1).values.unbind(1)
    best = log.argmax(1)
    start, end = starts.gather(1, (best // NBEST)[:, None]), ends.gather(1, (best % NBEST)[:, None])
    is_span = (first > null_chance)[:, None]
    choice = torch.where(is_span, torch.cat([start, end], 1), torch.zeros_like(torch.cat([start, end], 1)))
    likeliest, next_one = torch.maximum(first, null_chance), torch.maximum(second, torch.minimum(first, null_chance))
    pair = (scores[0][:, :, None] + scores[1][:, None, :]).flatten(1).gather(1, best[:, None])
    columns = [
        choice.float(),
        ((entropies[0] + entropies[1]) / 2).clamp_min(0)[:, None],
        likeliest.exp()[:, None],
        (likeliest.exp() - next_one.exp())[:, None],
        null[:, 0],
        pair,
        first.exp()[:, None],
        start.float(),
        end.float(),
        starts.float(),
        scores[0],
        ends.float(),
        scores[1],
    ]
    return torch.cat(columns, dim=1)


def _pairs(chances: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Log-probabilities of no answer, (rows,), and of every pair of the best starts and ends, (rows, NBEST, NBEST)."""
    (null_start, starts), (null_end, ends) = chances
    return null_start + null_end, starts[:, :, None] + ends[:, None, :]
