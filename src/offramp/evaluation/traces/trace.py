"""A trace: what every exit said about every row of a data set, in one file.

The file is safetensors with a JSON header, so anything reads it and nothing in it is executed:

| array         | shape                    |                                                              |
|---------------|--------------------------|--------------------------------------------------------------|
| `logits`      | (rows, exits, classes)   | every exit's answer, shallow to deep; the last is the full model |
| `spent`       | (rows, exits)            | the operations of the row up to that exit, heads on the way included |
| `heads`       | (rows, exits)            | of these the exit's own head                                 |
| `lengths`     | (rows,)                  | real tokens                                                  |
| `hashes`      | (rows,)                  | of the texts: who was trained on, who was held out           |
| `uncertainty` | (rows, exits)            | LTE's estimate that the exit is wrong, where the model has one |
| `kept`        | (rows, layers, 2)        | heads and channels that the row ran, with gates               |
| `question`    | (rows,)                  | of spans, whose rows are windows: the question that each is of |
| `labels`      | (rows,) or (rows, labels) | class numbers, values, or 0 and 1; where the data have some  |
| `reference`   | as answers are           | another model's answers, which disagreement is measured against |

Spans keep the exits' summaries as `logits` (`problems/span.py`), the best span's place in characters of its context;
the contexts and the right answers are the data's and come from there (`with_questions`).

Policies are replayed on it by the loop itself, so a replayed policy decides as a live one does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offramp.answers import ANSWER_TYPES, AnswerType
from offramp.answers.span_answers import answers_of, texts_of
from offramp.core.loop import run
from offramp.core.stepper import ExitOutput, ExitPoint, Judge, Shape, points_on
from offramp.policies import Policy
from offramp.runtimes.replay import Replay

__all__ = ["PER_ROW", "Replayed", "Trace"]

BLOCK = 1 << 16  # rows that are replayed together
PER_ROW = ("logits", "spent", "heads", "lengths", "hashes", "uncertainty", "kept", "question", "labels", "reference")

PER_QUESTION = ("labels", "reference")  # of spans

Array = NDArray[Any]


@dataclass(frozen=True)
class Replayed:
    """Where each row leaves under a policy, and with which answer."""

    exit: NDArray[np.int64]  # (rows,), the exit's number, from 1
    layer: NDArray[np.int64]  # (rows,), from 1
    answers: Array  # (rows,) classes or values, (rows, labels) 0 and 1; of spans (questions,) texts


@dataclass(frozen=True)
class Trace:
    """The arrays above, and what they are of."""

    about: dict[str, Any]  # model, data and machine, with their fingerprints; the reference where there is one
    logits: Array
    spent: Array
    heads: Array
    lengths: Array
    hashes: Array
    uncertainty: Array | None = None
    kept: Array | None = None
    question: Array | None = None
    labels: Array | None = None
    reference: Array | None = None
    contexts: tuple[str, ...] | None = None  # of the questions; not in the file
    judge: Judge | None = None  # of the policy `risk`, where one was fitted; not in the file

    def __len__(self) -> int:
        """How many answers there are: a row has one, or a question of several rows."""
        return self.rows if self.question is None else len(np.unique(self.question))

    @property
    def rows(self) -> int:
        """How many rows went through the model."""
        return len(self.logits)

    @property
    def answer_type(self) -> AnswerType:
        """The kind of answer."""
        return ANSWER_TYPES[self.about["model"]["problem"]]

    @property
    def points(self) -> tuple[ExitPoint, ...]:
        """The exits, shallow to deep."""
        return points_on(self.about["model"]["layers"])

    @property
    def depth(self) -> int:
        """Layers of the full model."""
        return int(self.about["model"]["depth"])

    @property
    def shape(self) -> Shape:
        """What policies have to know."""
        has_lte, faithful = self.uncertainty is not None, bool(self.about["model"]["faithful"])
        return Shape(self.answer_type, self.logits.shape[-1], self.points, has_lte, faithful, self.judge)

    # -- answers and costs -----------------------------------------------------------------------

    def answers_of(self, place: int) -> Array:
        """One exit's answers to all rows; −1 is the full model's."""
        return self._answers(self.logits[:, place])

    def _answers(self, logits: Array) -> Array:
        if self.question is None:
            return self.answer_type.answers(logits)
        if self.contexts is None:
            raise AssertionError("a trace of questions needs their contexts")
        found = answers_of(logits, np.asarray(self.question), self.about["model"]["no_answer"])
        return texts_of(found, self.contexts)

    def with_questions(self, contexts: Sequence[str], golds: Array | None) -> Trace:
        """The same with what its questions were asked about, and their right answers."""
        return replace(self, contexts=tuple(contexts), labels=golds)

    @cached_property
    def full(self) -> Array:
        """The full model's answers."""
        return self.answers_of(-1)

    @property
    def expected(self) -> Array:
        """The answers that disagreement is measured against: the reference's, or the full model's."""
        return self.full if self.reference is None else np.asarray(self.reference)

    def spent_at(self, exits: Array, alone: bool = False) -> NDArray[np.float64]:
        """Operations of rows that leave at these exits, numbered from 1; `alone`: no exit on the way was asked."""
        rows, places = np.arange(self.rows), np.asarray(exits) - 1
        spent = np.asarray(self.spent[rows, places])
        if not alone:
            return spent
        asked = np.cumsum(self.heads, axis=1)
        return spent - asked[rows, places] + self.heads[rows, places]

    # -- replaying -------------------------------------------------------------------------------

    @cached_property
    def _only_block(self) -> Replay:
        return self._block(slice(None))

    def _block(self, rows: slice) -> Replay:
        logits = torch.from_numpy(self.logits[rows].swapaxes(0, 1).copy())  # (exits, rows, classes)
        every = self.uncertainty
        uncertainty = None if every is None else torch.from_numpy(every[rows].T.copy())
        return Replay(
            [
                ExitOutput(
                    point.number,
                    point.layer,
                    self.answer_type,
                    logits[i],
                    None if uncertainty is None else uncertainty[i],
                )
                for i, point in enumerate(self.points)
            ]
        )

    def said(self) -> tuple[ExitOutput, ...]:
        """What every exit said about all rows."""
        return tuple(self._only_block.said)

    def _blocks(self) -> Iterator[Replay]:
        if self.rows <= BLOCK:
            yield self._only_block
            return
        for start in range(0, self.rows, BLOCK):
            yield self._block(slice(start, start + BLOCK))

    def replay(self, policy: Policy) -> Replayed:
        """Where rows leave under a policy: the loop, over what the exits said."""
        policy.check(self.shape)
        blocks = [run(block, {}, policy) for block in self._blocks()]
        exits, layers = (np.concatenate([getattr(one, name).numpy() for one in blocks]) for name in ("exit", "layer"))
        logits = np.concatenate([one.logits.numpy() for one in blocks])
        return Replayed(exits, layers, self._answers(logits))

    # -- other traces ----------------------------------------------------------------------------

    def take(self, places: NDArray[np.int64]) -> Trace:
        """Some of the rows; of questions all windows of some of them."""
        arrays = {name: getattr(self, name) for name in PER_ROW}
        if self.question is None:
            return replace(self, **{name: array[places] for name, array in arrays.items() if array is not None})
        rows = np.flatnonzero(np.isin(self.question, places))
        per_row = {
            name: array[rows] for name, array in arrays.items() if array is not None and name not in PER_QUESTION
        }
        per_row["question"] = np.searchsorted(np.sort(places), per_row["question"])
        asked = {name: array[np.sort(places)] for name in PER_QUESTION if (array := arrays[name]) is not None}
        contexts = None if self.contexts is None else tuple(self.contexts[place] for place in np.sort(places))
        return replace(self, **per_row, **asked, contexts=contexts)

    def scaled(self, temperatures: NDArray[np.float64]) -> Trace:
        """The same with every exit's logits divided by its temperature."""
        return replace(self, logits=(self.logits / temperatures[None, :, None]).astype(np.float32))
