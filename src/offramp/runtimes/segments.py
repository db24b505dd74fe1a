"""An exported model as a stepper: one graph per segment, whoever runs it; rows are cut out between them, in numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offramp.answers import AnswerType
from offramp.core.batch import Batch
from offramp.core.stepper import ExitOutput, ExitPoint, Positions

__all__ = ["Graph", "SegmentState", "SegmentStepper", "hash_of"]

Array = NDArray[Any]


class Graph(Protocol):
    """A graph in some runtime: arrays by name in, arrays by name out."""

    inputs: frozenset[str]

    def __call__(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Run it."""
        ...


@dataclass(frozen=True)
class SegmentState:
    """Rows between two segments."""

    feed: Mapping[str, Array]  # what the next segment takes: tokens, or hidden states
    mask: Array  # (rows, tokens), where they are real
    lengths: Array  # (rows,), up to the last real token
    passed: int = 0  # segments that they have run through
    marks: Array | None = None  # what the answer type marked


@dataclass(frozen=True)
class SegmentStepper:
    """A graph per exit."""

    backend: str
    dtype: str  # what its products are computed in
    exits: tuple[ExitPoint, ...]
    graphs: tuple[Graph, ...]
    answer_type: AnswerType
    sources: tuple[Path | bytes, ...] = ()  # what the graphs were read from
    runtime: str = ""  # its version and, for int8, the CPU's instructions: part of what was tested
    fresh: tuple[int, ...] = ()
    threads: int = 1

    def embed(self, batch: Batch) -> SegmentState:
        """A batch's tokens, cut to its longest row."""
        batch = batch.cut()
        feed = {"input_ids": batch.ids.numpy()}
        if "token_type_ids" in self.graphs[0].inputs:
            types = batch.types
            feed["token_type_ids"] = np.zeros_like(feed["input_ids"]) if types is None else types.numpy()
        mask = np.ones(batch.ids.shape, bool) if batch.mask is None else batch.mask.numpy()
        return SegmentState(feed, mask, batch.lengths, marks=None if batch.marks is None else batch.marks.numpy())

    def advance(self, state: SegmentState, point: ExitPoint) -> tuple[SegmentState, ExitOutput]:
        """Run the segments up to the exit."""
        found: dict[str, Array] = {}
        for number in range(state.passed, point.number):
            graph = self.graphs[number]
            feed = {**state.feed, "mask": state.mask}
            found = graph({name: value for name, value in feed.items() if name in graph.inputs})
            following = {"hidden": found["next"]} if "next" in found else {}
            state = replace(state, feed=following, passed=number + 1)
        marks = None if state.marks is None else torch.from_numpy(state.marks)
        logits = torch.from_numpy(found["logits"])
        logits, tokens = self.answer_type.read(logits, lambda: torch.from_numpy(state.mask), marks)
        uncertainty = torch.from_numpy(found["uncertainty"]) if "uncertainty" in found else None
        return state, ExitOutput(point.number, point.layer, self.answer_type, logits, uncertainty, tokens=tokens)

    def keep(self, state: SegmentState, rows: Positions) -> SegmentState:
        """Go on with these rows, cut to the longest of them."""
        lengths = state.lengths[rows]
        longest = int(lengths.max())
        feed = {name: _some(value, rows, longest) for name, value in state.feed.items()}
        marks = None if state.marks is None else _some(state.marks, rows, longest)
        return SegmentState(feed, _some(state.mask, rows, longest), lengths, state.passed, marks)

    # -- what a runner needs beside stepping -----------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @cached_property
    def _weights(self) -> str:
        return hash_of(*self.sources, also=self.runtime)

    def weights(self) -> str:
        """The fingerprint of the graphs, weights in them, and of the runtime's version."""
        return self._weights

    def untrained(self) -> tuple[int, ...]:
        """The layers whose heads were never trained."""
        return self.fresh

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Nothing to switch but torch's gradients, for what policies compute."""
        with torch.inference_mode():
            yield

    def plain(self, batch: Batch) -> Tensor:
        """All segments, nobody leaves."""
        _, output = self.advance(self.embed(batch), self.exits[-1])
        return output.raw


def hash_of(*sources: Path | bytes, also: str = "") -> str:
    """Of bytes, or of files' bytes, in their order."""
    digest = hashlib.blake2b(also.encode(), digest_size=16)
    for source in sources:
        if isinstance(source, bytes):
            digest.update(source)
            continue
        with source.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _some(values: Array, rows: Positions, length: int) -> Array:
    """Rows, cut to a length, one after the other in memory."""
    kept: Array = torch.from_numpy(values[:, :length]).index_select(0, torch.from_numpy(rows)).numpy()
    return kept
