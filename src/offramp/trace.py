"""A trace: what every exit said about every row of a data set, in one file.

The file is safetensors with a JSON header, so anything reads it and nothing in it is executed:

| array         | shape                    |                                                              |
|---------------|--------------------------|--------------------------------------------------------------|
| `logits`      | (rows, exits, classes)   | every exit's answer, shallow to deep; the last is the full model |
| `uncertainty` | (rows, exits)            | LTE's estimate that the exit is wrong, where the model has one |
| `labels`      | (rows,) or (rows, labels) | class numbers, values, or 0 and 1; where the data have some  |
| `lengths`     | (rows,)                  | real tokens                                                  |
| `hashes`      | (rows,)                  | of the texts: who was trained on, who was held out           |
| `seconds`     | (exits,)                 | spent on the way from one exit to the next, all rows together |

Policies are replayed on it by the loop itself, so a replayed policy decides as a live one does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from offramp.errors import BadInput
from offramp.loop import run
from offramp.policies import Policy
from offramp.replay import Replay
from offramp.stepper import ExitPoint, Problem, Said

__all__ = ["FORMAT", "Departures", "Trace", "answers", "read_trace"]

FORMAT = "offramp trace 1"
BLOCK = 1 << 16  # rows that are replayed together
DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "U64": np.uint64}

Array = NDArray[Any]


@dataclass(frozen=True)
class Departures:
    """Where each row leaves under a policy, and with which answer."""

    exit: NDArray[np.int64]  # (rows,), the exit's number, from 1
    layer: NDArray[np.int64]  # (rows,), from 1
    answers: Array  # (rows,) classes or values, (rows, labels) 0 and 1


@dataclass(frozen=True)
class Trace:
    """The arrays above, and what they are of."""

    about: dict[str, Any]  # model, data and machine, with their fingerprints
    logits: Array
    lengths: Array
    hashes: Array
    seconds: Array
    labels: Array | None = None
    uncertainty: Array | None = None

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def problem(self) -> Problem:
        """The kind of answer."""
        return Problem(self.about["model"]["problem"])

    @property
    def points(self) -> tuple[ExitPoint, ...]:
        """The exits, shallow to deep."""
        return tuple(ExitPoint(number, layer) for number, layer in enumerate(self.about["model"]["layers"], 1))

    @property
    def depth(self) -> int:
        """Layers of the full model."""
        return int(self.about["model"]["depth"])

    @property
    def has_lte(self) -> bool:
        """Whether the policy `learned` can be replayed."""
        return self.uncertainty is not None

    def answers_of(self, place: int) -> Array:
        """One exit's answers to all rows; −1 is the full model's."""
        return answers(self.logits[:, place], self.problem)

    @cached_property
    def full(self) -> Array:
        """The full model's answers."""
        return self.answers_of(-1)

    @cached_property
    def _only_block(self) -> Replay:
        return self._replay(slice(None))

    def _replay(self, rows: slice) -> Replay:
        logits = torch.from_numpy(self.logits[rows].swapaxes(0, 1).copy())  # (exits, rows, classes)
        sure = None if self.uncertainty is None else torch.from_numpy(self.uncertainty[rows].T.copy())
        return Replay(
            [
                Said(point.number, point.layer, self.problem, logits[i], None if sure is None else sure[i])
                for i, point in enumerate(self.points)
            ]
        )

    def _blocks(self) -> Iterator[Replay]:
        if len(self) <= BLOCK:
            yield self._only_block
            return
        for start in range(0, len(self), BLOCK):
            yield self._replay(slice(start, start + BLOCK))

    def leave(self, policy: Policy) -> Departures:
        """Replay a policy: the loop, over what the exits said."""
        policy.check(self.problem, self.points, bool(self.about["model"].get("faithful")))
        left = [run(block, {}, policy) for block in self._blocks()]
        exits, layers = (np.concatenate([getattr(one, name).numpy() for one in left]) for name in ("exit", "layer"))
        logits = np.concatenate([one.logits.numpy() for one in left])
        return Departures(exits, layers, answers(logits, self.problem))

    def take(self, rows: NDArray[np.int64]) -> Trace:
        """Some of the rows."""
        return replace(
            self,
            logits=self.logits[rows],
            lengths=self.lengths[rows],
            hashes=self.hashes[rows],
            labels=None if self.labels is None else self.labels[rows],
            uncertainty=None if self.uncertainty is None else self.uncertainty[rows],
        )

    def scaled(self, temperatures: NDArray[np.float64]) -> Trace:
        """The same with every exit's logits divided by its temperature."""
        return replace(self, logits=(self.logits / temperatures[None, :, None]).astype(np.float32))


def answers(logits: Array, problem: Problem) -> Array:
    """Classes, sets of labels or values from logits whose last axis is classes."""
    if problem is Problem.REGRESSION:
        return logits[..., 0].astype(np.float64)
    return (logits > 0).astype(np.int64) if problem is Problem.MULTI_LABEL else logits.argmax(-1)


def read_trace(file: Path) -> Trace:
    """Open a trace; its arrays stay on the disk until they are read."""
    if not file.is_file():
        raise BadInput(f"No file {file}.")
    try:
        with safe_open(file, framework="np") as opened:
            metadata = opened.metadata() or {}
            names = set(opened.keys())
    except (SafetensorError, OSError) as err:
        raise BadInput(f"{file} cannot be read as a trace: {str(err).splitlines()[0]}.") from err
    if metadata.get("format") != FORMAT or not {"logits", "lengths", "hashes", "seconds"} <= names:
        raise BadInput(f"{file} is not a trace of offramp's (or of another version); record it again.")
    with file.open("rb") as raw:
        size = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(size))
    arrays = {name: _mapped(file, 8 + size, header[name]) for name in names}
    return Trace(json.loads(metadata["about"]), **arrays)


def _mapped(file: Path, start: int, entry: dict[str, Any]) -> Array:
    offset = start + entry["data_offsets"][0]
    return np.memmap(file, DTYPES[entry["dtype"]], "r", offset, tuple(entry["shape"]))
