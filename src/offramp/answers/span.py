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

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.answers.answer_type import AnswerType, Array, Written
from offramp.answers.overlap import f1
from offramp.answers.single_label import divergence

__all__ = ["BEST", "ENDS", "END_LOGITS", "LONGEST", "LOW", "NBEST", "NULL", "STARTS", "START_LOGITS", "WIDTH", "Span"]

NBEST = 20  # starts and ends that are kept
LONGEST = 30  # tokens of an answer
POSITIONS = 512  # that an entropy is spread over at most
LOW = -1e4  # the logit of what cannot be: finite, and nothing after a softmax

CHOICE, ENTROPY, CONFIDENCE, MARGIN, NULL = slice(0, 2), 2, 3, 4, slice(5, 7)
BEST = slice(7, 11)
STARTS, START_LOGITS, ENDS, END_LOGITS = (slice(11 + NBEST * i, 11 + NBEST * (i + 1)) for i in range(4))
WIDTH = 11 + 4 * NBEST


class Span(AnswerType):
    """The answer is the best span; losses take every token's two logits."""

    name: ClassVar[str] = "question_answering"
    short: ClassVar[str] = "span"
    metric: ClassVar[str] = "span_f1"
    metrics: ClassVar[tuple[str, ...]] = ("span_f1", "exact_match")
    is_span: ClassVar[bool] = True

    def columns(self, classes: int) -> int:
        """Of the summary."""
        return WIDTH

    def alternatives(self, classes: int) -> int:
        """Positions of the longest usual window."""
        return POSITIONS

    # -- the answer: texts, made of windows by `spans.answers` -----------------------------------

    def answers(self, logits: Array) -> Array:
        """The best spans of windows, (…, 2): start and end; questions' answers are made elsewhere."""
        return np.asarray(logits[..., CHOICE], dtype=np.int64)

    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Another text."""
        return np.asarray(answers != others, dtype=bool)

    def wrong(self, answers: Array, labels: Array, tolerance: float | None = None) -> Array:
        """What F1 lacks to 1."""
        return np.array([1 - f1(text, golds) for text, golds in zip(answers, labels, strict=True)])

    def distance(self, answers: Array, labels: Array) -> Array:
        """What F1 lacks to 1, of each exit's answers, (exits, rows)."""
        return np.stack([self.wrong(each, labels) for each in answers])

    def write(self, logits: Tensor, labels: Sequence[str]) -> Iterator[Written]:
        """Not of a window alone."""
        raise AssertionError("a question's answer is made of its windows")

    def say(self, answer: Any, labels: Sequence[str]) -> str:
        """The text."""
        return str(answer) or "(no answer)"

    # -- leaving ---------------------------------------------------------------------------------

    def choice(self, logits: Tensor) -> Tensor:
        """Start and end, (rows, 2)."""
        return logits[:, CHOICE]

    def entropy(self, logits: Tensor) -> Tensor:
        """The mean of start's and end's."""
        return logits[:, ENTROPY]

    def confidence(self, logits: Tensor) -> Tensor:
        """Start's probability times end's."""
        return logits[:, CONFIDENCE]

    def margin(self, logits: Tensor) -> Tensor:
        """The likeliest span's lead over the next."""
        return logits[:, MARGIN]

    # -- training: two classifications over the tokens ---------------------------------------------

    def apart(self, logits: Tensor) -> Tensor:
        """Each row's start and end as two rows with a class per token, (2 rows, tokens)."""
        return logits.transpose(1, 2).flatten(0, 1)

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """The mean of start's and end's cross-entropy, (rows, tokens, 2) and (rows, 2).

        A target behind the last token does not count, as the library's own models have it.
        """
        tokens = logits.shape[1]
        each = [
            functional.cross_entropy(
                logits[..., side], labels[:, side].clamp(0, tokens), ignore_index=tokens, label_smoothing=smoothing
            )
            for side in (0, 1)
        ]
        return (each[0] + each[1]) / 2

    def imitation(self, logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
        """The divergence of start and end; always per row, since padding is no class."""
        return divergence(self.apart(logits), self.apart(teacher), temperature, per_row=True)

    def mistaken(self, logits: Tensor, labels: Tensor) -> Tensor:
        """1 where start or end is wrong; (…, rows) of (…, rows, tokens, 2)."""
        return (logits.argmax(-2) != labels).any(-1).to(logits.dtype)


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
