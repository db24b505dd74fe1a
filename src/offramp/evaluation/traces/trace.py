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
| `group`       | (rows,)                  | where an example may be several rows: the example that each is of |
| `labels`      | (rows,) or (rows, labels) | class numbers, values, or 0 and 1; where the data have some  |
| `reference`   | as answers are           | another model's answers, which disagreement is measured against |

Where every token is answered, `logits` are the exits' summaries (`answers/span_summary.py`), places in characters of
the text; the examples and the right answers are the data's and come from there (`with_examples`).

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
from offramp.answers.answer import Answers, Decoding, RowOutputs
from offramp.core.batch import Batch
from offramp.core.loop import run
from offramp.core.stepper import ExitOutput, ExitPoint, ModelSpec, RiskParameters, points_on
from offramp.policies import Policy
from offramp.runtimes.replay import Replay

__all__ = ["PER_ROW", "Replayed", "Trace"]

BLOCK = 1 << 16  # rows that are replayed together
PER_ROW = ("logits", "spent", "heads", "lengths", "hashes", "uncertainty", "kept", "group", "labels", "reference")

PER_EXAMPLE = ("labels", "reference")  # where an example may be several rows

Array = NDArray[Any]


@dataclass(frozen=True)
class Replayed:
    """Where each row leaves under a policy, and with which answer."""

    exit: NDArray[np.int64]  # (rows,), the exit's number, from 1
    layer: NDArray[np.int64]  # (rows,)
    answers: Array  # (examples,) classes or values or texts, (examples, labels) 0 and 1


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
    group: Array | None = None
    labels: Array | None = None
    reference: Array | None = None
    examples: tuple[Any, ...] | None = None  # which answers may point into; not in the file
    risk_model: RiskParameters | None = None  # of the policy `risk`, where one was fitted; not in the file

    def __len__(self) -> int:
        """How many answers there are: a row has one, or an example of several rows."""
        return self.rows if self.group is None else len(np.unique(self.group))

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
    def model_spec(self) -> ModelSpec:
        """What policies have to know."""
        has_lte, faithful = self.uncertainty is not None, bool(self.about["model"]["faithful"])
        classes = len(self.about["model"].get("labels") or ()) or self.logits.shape[-1]
        return ModelSpec(self.answer_type, classes, self.points, has_lte, faithful, self.risk_model)

    # -- answers and costs -----------------------------------------------------------------------

    def answers_of(self, place: int) -> Array:
        """One exit's answers to all rows; −1 is the full model's."""
        return self._answers(self.logits[:, place])

    def _answers(self, logits: Array) -> Array:
        if self.group is None:
            return self.answer_type.answers(logits)
        none = np.zeros(len(logits), dtype=np.int64)
        return self.decode(RowOutputs(logits, none, none)).values

    def rows_at_exit(self, place: int) -> RowOutputs:
        """All rows as if they exited at one exit; −1 is the last."""
        point = self.points[place]
        numbers = (np.full(self.rows, point.number), np.full(self.rows, point.layer))
        return RowOutputs(np.asarray(self.logits[:, place]), *numbers)

    def decode(self, outputs: RowOutputs) -> Answers:
        """Examples' answers, made of what their rows exited with."""
        group = None if self.group is None else np.asarray(self.group)
        return self.answer_type.decode(outputs, group, self.examples, self.decoding)

    @property
    def decoding(self) -> Decoding:
        """How outputs become answers."""
        model = self.about["model"]
        return Decoding(tuple(model["labels"]), model.get("no_answer"))

    def with_examples(self, examples: Sequence[Any], labels: Array | None) -> Trace:
        """The same with what its answers may point into, and the right answers where the file has none."""
        return replace(self, examples=tuple(examples), labels=self.labels if labels is None else labels)

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

    def outputs(self) -> tuple[ExitOutput, ...]:
        """What every exit answered for all rows."""
        return tuple(self._only_block.outputs)

    def _blocks(self, together: bool) -> Iterator[tuple[Replay, Array | None]]:
        """Rows that are replayed together, with their groups."""
        if self.rows <= BLOCK or together:
            yield self._only_block, self.group
            return
        for start in range(0, self.rows, BLOCK):
            rows = slice(start, start + BLOCK)
            yield self._block(rows), None

    def replay(self, policy: Policy) -> Replayed:
        """Where rows exit under a policy: the loop, over what the exits answered."""
        outputs = self.replayed_rows(policy)
        return Replayed(outputs.exit, outputs.layer, self._answers(outputs.logits))

    def replayed_rows(self, policy: Policy) -> RowOutputs:
        """What rows exit with under a policy."""
        policy.check(self.model_spec)
        blocks = [run(block, Batch.of_groups(group), policy) for block, group in self._blocks(policy.sees_groups)]
        exits, layers = (np.concatenate([getattr(one, name).numpy() for one in blocks]) for name in ("exit", "layer"))
        return RowOutputs(np.concatenate([one.logits.numpy() for one in blocks]), exits, layers)

    # -- other traces ----------------------------------------------------------------------------

    def take(self, places: NDArray[np.int64]) -> Trace:
        """Some of the rows; where an example may be several, all rows of some examples."""
        arrays = {name: getattr(self, name) for name in PER_ROW}
        if self.group is None:
            examples = None if self.examples is None else tuple(self.examples[place] for place in places)
            some = {name: array[places] for name, array in arrays.items() if array is not None}
            return replace(self, **some, examples=examples)
        chosen = np.sort(places)
        rows = np.flatnonzero(np.isin(self.group, chosen))
        per_row = {name: array[rows] for name, array in arrays.items() if array is not None and name not in PER_EXAMPLE}
        per_row["group"] = np.searchsorted(chosen, per_row["group"])
        each = {name: array[chosen] for name in PER_EXAMPLE if (array := arrays[name]) is not None}
        examples = None if self.examples is None else tuple(self.examples[place] for place in chosen)
        return replace(self, **per_row, **each, examples=examples)

    def scaled(self, temperatures: NDArray[np.float64]) -> Trace:
        """The same with every exit's logits divided by its temperature."""
        return replace(self, logits=(self.logits / temperatures[None, :, None]).astype(np.float32))
