"""A trace: the outputs of every exit for every row of a data set, in one safetensors file with a JSON header.

| array         | shape                    |                                                              |
|---------------|--------------------------|--------------------------------------------------------------|
| `logits`      | (rows, exits, classes)   | outputs of every exit, shallow to deep; the last is the full model |
| `spent`       | (rows, exits)            | operations of the row up to that exit, with all heads on the way |
| `heads`       | (rows, exits)            | operations of the exit's head alone                           |
| `lengths`     | (rows,)                  | tokens without padding                                       |
| `hashes`      | (rows,)                  | hashes of the texts, to tell training rows from held-out rows |
| `uncertainty` | (rows, exits)            | LTE's estimate that the exit is wrong, if the model has LTE  |
| `kept`        | (rows, layers, 2)        | heads and channels that the gates kept                       |
| `group`       | (rows,)                  | index of the example, if an example may be several rows      |
| `labels`      | (rows,) or (rows, labels) | class numbers, values, or 0 and 1; if the data has labels    |
| `reference`   | like predictions         | predictions of another model to compare with                 |
| `reference_logits` | (rows, classes)     | the logits of these predictions, if known                    |

For question answering, `logits` are summaries of the exits' outputs (`answers/span_summary.py`) with character
positions; the examples and text answers are not stored, but added from the data (`with_examples`).

Policies are replayed by the same loop that runs the model, so a replayed policy decides exactly as a live one.
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
from offramp.core.stepper import ExitOutput, ExitPoint, ModelSpec, RiskParameters, exit_points_on
from offramp.policies import Policy
from offramp.runtimes.replay import Replay

__all__ = ["PER_ROW", "Replayed", "Trace"]

BLOCK = 1 << 16  # rows replayed at a time
PER_ROW: tuple[str, ...] = ("logits", "spent", "heads", "lengths", "hashes", "uncertainty", "kept", "group")
PER_ROW = (*PER_ROW, "labels", "reference", "reference_logits")

PER_EXAMPLE = ("labels", "reference", "clusters")  # if an example may be several rows

Array = NDArray[Any]


@dataclass(frozen=True)
class Replayed:
    """Where every row exits under a policy, and the predictions."""

    exit: NDArray[np.int64]  # (rows,), the exit's number, from 1
    layer: NDArray[np.int64]  # (rows,)
    answers: Array  # (examples,) classes, values or texts; (examples, labels) of 0 and 1


@dataclass(frozen=True)
class Trace:
    """The arrays above, with metadata."""

    about: dict[str, Any]  # model, data and machine with fingerprints, and the reference if any
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
    reference_logits: Array | None = None
    clusters: Array | None = None  # (examples,): examples of one cluster are not independent; not in the file
    examples: tuple[Any, ...] | None = None  # that text answers refer to; not in the file
    risk_model: RiskParameters | None = None  # of the policy `risk`, if fitted; not in the file
    errors: tuple[float, ...] | None = None  # of the policy `top-k`, if fitted; not in the file

    def __len__(self) -> int:
        """Return the number of predictions: one per row, or per example if an example may be several rows."""
        return self.rows if self.group is None else len(np.unique(self.group))

    @property
    def rows(self) -> int:
        """Number of rows that went through the model."""
        return len(self.logits)

    @property
    def answer_type(self) -> AnswerType:
        """The answer type of the model."""
        return ANSWER_TYPES[self.about["model"]["problem"]]

    @property
    def points(self) -> tuple[ExitPoint, ...]:
        """The exits, shallow to deep."""
        return exit_points_on(self.about["model"]["layers"])

    @property
    def depth(self) -> int:
        """Number of layers of the full model."""
        return int(self.about["model"]["depth"])

    @property
    def model_spec(self) -> ModelSpec:
        """The model spec that policies need."""
        has_lte, faithful = self.uncertainty is not None, bool(self.about["model"]["faithful"])
        classes = len(self.about["model"].get("labels") or ()) or self.logits.shape[-1]
        options = self.about["model"].get("options")
        fitted = (self.risk_model, self.errors)
        return ModelSpec(self.answer_type, classes, self.points, has_lte, faithful, *fitted, options)

    # -- predictions and costs--------------------------------------------------------------------

    def answers_at(self, exit_index: int) -> Array:
        """Return the predictions of one exit for all rows; −1 is the full model."""
        return self._answers(self.logits[:, exit_index])

    def _answers(self, logits: Array) -> Array:
        if self.group is None and not self.answer_type.has_windows:
            return self.answer_type.answers(logits)
        unused = np.zeros(len(logits), dtype=np.int64)
        return self.decode(RowOutputs(logits, unused, unused)).values

    def rows_at_exit(self, exit_index: int) -> RowOutputs:
        """Return the outputs of all rows at one exit; −1 is the last."""
        point = self.points[exit_index]
        numbers = (np.full(self.rows, point.number), np.full(self.rows, point.layer))
        return RowOutputs(np.asarray(self.logits[:, exit_index]), *numbers)

    def decode(self, outputs: RowOutputs) -> Answers:
        """Return the predictions of examples from the outputs of their rows."""
        group = None if self.group is None else np.asarray(self.group)
        return self.answer_type.decode(outputs, group, self.examples, self.decoding)

    @property
    def decoding(self) -> Decoding:
        """The options for decoding outputs into predictions."""
        model = self.about["model"]
        return Decoding(tuple(model["labels"]), model.get("no_answer"), model.get("options"), self.depth)

    def with_examples(self, examples: Sequence[Any], labels: Array | None) -> Trace:
        """Return the trace with the examples that text answers refer to, and text labels if any."""
        return replace(self, examples=tuple(examples), labels=self.labels if labels is None else labels)

    @cached_property
    def full(self) -> Array:
        """The predictions of the full model."""
        return self.answers_at(-1)

    @property
    def expected(self) -> Array:
        """The predictions to compare with: the reference's, or the full model's."""
        return self.full if self.reference is None else np.asarray(self.reference)

    @property
    def expected_logits(self) -> Array | None:
        """The logits of `expected`; None if they are not known."""
        return np.asarray(self.logits[:, -1]) if self.reference is None else self.reference_logits

    def spent_at(self, exits: Array, alone: bool = False) -> NDArray[np.float64]:
        """Return the operations of rows that exit at these exits (from 1); `alone`: without earlier heads."""
        rows, indices = np.arange(self.rows), np.asarray(exits) - 1
        spent = np.asarray(self.spent[rows, indices])
        if not alone:
            return spent
        head_totals = np.cumsum(self.heads, axis=1)
        return spent - head_totals[rows, indices] + self.heads[rows, indices]

    # -- replaying -------------------------------------------------------------------------------

    @cached_property
    def _only_block(self) -> Replay:
        return self._block(slice(None))

    def _block(self, rows: slice) -> Replay:
        logits = torch.from_numpy(self.logits[rows].swapaxes(0, 1).copy())  # (exits, rows, classes)
        uncertainty = None if self.uncertainty is None else torch.from_numpy(self.uncertainty[rows].T.copy())
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
        """Return the outputs of every exit for all rows."""
        return tuple(self._only_block.outputs)

    def _blocks(self, together: bool) -> Iterator[tuple[Replay, Array | None]]:
        """Yield blocks of rows to replay, with their groups."""
        if self.rows <= BLOCK or together:
            yield self._only_block, None if self.group is None else np.array(self.group)  # torch needs a copy
            return
        for start in range(0, self.rows, BLOCK):
            rows = slice(start, start + BLOCK)
            yield self._block(rows), None

    def replay(self, policy: Policy) -> Replayed:
        """Replay a policy: where rows exit, and their predictions."""
        outputs = self.replayed_rows(policy)
        if self.group is not None:
            answers = self.decode(outputs).values
        elif self.answer_type.has_windows:  # decoded once per exit
            answers = self._answers_per_exit[outputs.exit - 1, np.arange(self.rows)]
        else:
            answers = self._answers(outputs.logits)
        return Replayed(outputs.exit, outputs.layer, answers)

    @cached_property
    def _answers_per_exit(self) -> Array:
        """The predictions of every exit, (exits, rows)."""
        return np.stack([self.answers_at(index) for index in range(len(self.points))])

    def replayed_rows(self, policy: Policy) -> RowOutputs:
        """Return the outputs of all rows under a policy."""
        policy.check(self.model_spec)
        outputs = [run(block, Batch.from_groups(group), policy) for block, group in self._blocks(policy.sees_groups)]
        exits, layers = (np.concatenate([getattr(block, name) for block in outputs]) for name in ("exit", "layer"))
        return RowOutputs(np.concatenate([block.logits.numpy() for block in outputs]), exits, layers)

    # -- derived traces --------------------------------------------------------------------------

    def take(self, indices: NDArray[np.int64]) -> Trace:
        """Return a subset of the rows; if an example may be several rows, a subset of the examples."""
        arrays = {name: getattr(self, name) for name in (*PER_ROW, "clusters")}
        if self.group is None:
            examples = None if self.examples is None else tuple(self.examples[index] for index in indices)
            subset = {name: array[indices] for name, array in arrays.items() if array is not None}
            if self.clusters is not None:
                subset["clusters"] = np.unique(self.clusters[indices], return_inverse=True)[1]
            return replace(self, **subset, examples=examples)
        chosen = np.sort(indices)
        rows = np.flatnonzero(np.isin(self.group, chosen))
        per_row = {name: array[rows] for name, array in arrays.items() if array is not None and name not in PER_EXAMPLE}
        per_row["group"] = np.searchsorted(chosen, per_row["group"])
        per_example = {name: array[chosen] for name in PER_EXAMPLE if (array := arrays[name]) is not None}
        if self.clusters is not None:
            per_example["clusters"] = np.unique(self.clusters[chosen], return_inverse=True)[1]
        examples = None if self.examples is None else tuple(self.examples[index] for index in chosen)
        return replace(self, **per_row, **per_example, examples=examples)

    def scaled(self, temperatures: NDArray[np.float64]) -> Trace:
        """Return the trace with the logits of every exit divided by its temperature."""
        return replace(self, logits=(self.logits / temperatures[None, :, None]).astype(np.float32))
