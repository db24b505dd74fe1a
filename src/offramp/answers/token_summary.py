"""Fixed-size summaries of the logits of a text's tokens.

Every exit has one distribution over the labels per token, so rows differ in length. `summarize_tokens` reduces them, on
their device, to a row of fixed size, which is all that policies and traces see: how certain the least certain word is
(SENTEE, Li et al., ACL 2021), and the label of each word with its probability.

The mark of a token is 0 if its output is not used: special tokens, and tokens that another window of a long text reads.
Otherwise it is 1 + the position of the first token of its word. The probabilities of tokens with the same mark are
averaged; with negative marks the most certain token counts instead.

| columns   |                                                                                       |
|-----------|---------------------------------------------------------------------------------------|
| `ENTROPY` | largest entropy of a word                                                               |
| …         | smallest probability, and smallest margin over the runner-up, of a word               |
| `JOINT`   | log-probability of all labels together                                                |
| `LABELS`  | index of the label, at the position of the word's first token; −1 at other positions  |
| `SCORES`  | its probability                                                                        |
| `BEGINS` … | first character of the word, and the end of the word: 0 before `locate`               |
"""

from __future__ import annotations

import torch
from torch import Tensor

from offramp.answers.softmax import softmax

__all__ = [
    "BEGINS",
    "CONFIDENCE",
    "ENDS",
    "ENTROPY",
    "JOINT",
    "LABELS",
    "MARGIN",
    "POSITIONS",
    "SCORES",
    "WIDTH",
    "default_marks",
    "summarize_tokens",
]

MIN_PROBABILITY = 1e-6
POSITIONS = 256  # maximum number of tokens in a window

ENTROPY, CONFIDENCE, MARGIN, JOINT = range(4)
LABELS, SCORES, BEGINS, ENDS = (slice(4 + POSITIONS * i, 4 + POSITIONS * (i + 1)) for i in range(4))
WIDTH = ENDS.stop


def default_marks(real: Tensor) -> Tensor:
    """Return marks that use every real token except the first and the last, which are special tokens."""
    positions = torch.arange(1, real.shape[1] + 1, device=real.device)
    is_inner = real & (positions > 1) & (positions < real.sum(1, keepdim=True))
    return torch.where(is_inner, positions, 0)


def summarize_tokens(logits: Tensor, marks: Tensor) -> Tensor:
    """Return the summary of each row, (rows, WIDTH) in float32; `logits` is (rows, tokens, labels)."""
    rows, length, _ = logits.shape
    probabilities = softmax(logits.float())
    positions = torch.arange(length, device=logits.device)
    first = marks.abs() - 1  # position of the first token of the word
    is_first = first == positions
    if not marks.is_meta and bool(((first >= 0) & ~is_first).any()):  # on "meta", operations are only counted
        probabilities = _join_pieces(probabilities, marks, first.clamp_min(0))
    top, indices = probabilities.topk(2, dim=-1)
    best, label = top[..., 0], indices[..., 0]
    margin, entropy = best - top[..., 1], torch.special.entr(probabilities).sum(-1)
    certainty = [
        entropy.masked_fill(~is_first, 0).amax(1),
        best.masked_fill(~is_first, 1).amin(1),
        margin.masked_fill(~is_first, 1).amin(1),
        best.clamp_min(MIN_PROBABILITY).log().masked_fill(~is_first, 0).sum(1),
    ]
    summary = logits.new_zeros((rows, WIDTH), dtype=torch.float32)
    summary[:, : JOINT + 1] = torch.stack(certainty, 1)
    used = min(length, POSITIONS)
    summary[:, LABELS] = -1
    summary[:, LABELS.start : LABELS.start + used] = label.masked_fill(~is_first, -1)[:, :used].float()
    summary[:, SCORES.start : SCORES.start + used] = best.masked_fill(~is_first, 0)[:, :used]
    return summary


def _join_pieces(probabilities: Tensor, marks: Tensor, first: Tensor) -> Tensor:
    """Return probabilities in which the first token of each word has those of the word."""
    rows, length, labels = probabilities.shape
    used = (marks != 0).to(probabilities.dtype)
    columns = first[..., None].expand(-1, -1, labels)
    totals = torch.zeros_like(probabilities).scatter_add(1, columns, probabilities * used[..., None])
    counts = used.new_zeros((rows, length)).scatter_add(1, first, used)
    mean = totals / counts.clamp_min(1)[..., None]
    if not bool((marks < 0).any()):
        return torch.where(counts[..., None] > 0, mean, probabilities)
    best = (probabilities.amax(-1) * used).masked_fill(used == 0, -1)
    largest = best.new_full((rows, length), -1.0).scatter_reduce(1, first, best, "amax")
    is_largest = (best == largest.gather(1, first)) & (used > 0)
    positions = torch.arange(length, device=marks.device).expand(rows, -1)
    candidates = torch.where(is_largest, positions, length)
    chosen = positions.new_full((rows, length), length).scatter_reduce(1, first, candidates, "amin")
    chosen = torch.where(chosen < length, chosen, positions)
    return probabilities.gather(1, chosen[..., None].expand(-1, -1, labels))
