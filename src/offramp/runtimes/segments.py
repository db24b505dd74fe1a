"""A stepper that runs an exported model: one graph per segment between exits; rows are selected in numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offramp.answers import AnswerType
from offramp.core.batch import Batch
from offramp.core.stepper import ExitOutput, ExitPoint, RowIndices

__all__ = ["Graph", "SegmentState", "SegmentStepper", "hash_sources"]

Array = NDArray[Any]


class Graph(Protocol):
    """A graph of a runtime, which maps named arrays to named arrays."""

    inputs: frozenset[str]

    def __call__(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Run the graph."""
        ...


@dataclass(frozen=True)
class SegmentState:
    """The state of rows between two segments."""

    feed: Mapping[str, Array]  # inputs of the next segment: token ids or hidden states
    mask: Array  # (rows, tokens), True for real tokens
    lengths: Array  # (rows,), number of tokens up to the last real one
    segments_done: int = 0
    marks: Array | None = None  # (rows, tokens), see `EncodedRows`


@dataclass(frozen=True)
class SegmentStepper:
    """Runs one graph per exit."""

    backend: str
    dtype: str  # the dtype of matrix products
    exits: tuple[ExitPoint, ...]
    graphs: tuple[Graph, ...]
    answer_type: AnswerType
    sources: tuple[Path | bytes, ...] = ()  # the files or bytes of the graphs
    runtime: str = ""  # version of the library and, for int8, the CPU's instructions; part of the fingerprint
    untrained: tuple[int, ...] = ()  # layers of exits whose heads have not been trained
    threads: int = 1

    def embed(self, batch: Batch) -> SegmentState:
        """Return the inputs of the first segment, trimmed to the longest row."""
        batch = batch.trim()
        feed = {"input_ids": batch.ids.numpy()}
        if "token_type_ids" in self.graphs[0].inputs:
            types = batch.types
            feed["token_type_ids"] = np.zeros_like(feed["input_ids"]) if types is None else types.numpy()
        mask = np.ones(batch.ids.shape, bool) if batch.mask is None else batch.mask.numpy()
        return SegmentState(feed, mask, batch.lengths, marks=None if batch.marks is None else batch.marks.numpy())

    def advance(self, state: SegmentState, point: ExitPoint) -> tuple[SegmentState, ExitOutput]:
        """Run the segments up to the exit."""
        feed, outputs = state.feed, dict[str, Array]()
        for number in range(state.segments_done, point.number):
            graph = self.graphs[number]
            outputs = graph({**feed, "mask": state.mask} if "mask" in graph.inputs else feed)
            feed = {"hidden": outputs["next"]} if "next" in outputs else {}
        state = SegmentState(feed, state.mask, state.lengths, point.number, state.marks)
        marks = None if state.marks is None else torch.from_numpy(state.marks)
        logits = torch.from_numpy(outputs["logits"])
        logits, tokens = self.answer_type.summarize_logits(logits, lambda: torch.from_numpy(state.mask), marks)
        uncertainty = torch.from_numpy(outputs["uncertainty"]) if "uncertainty" in outputs else None
        return state, ExitOutput(point.number, point.layer, self.answer_type, logits, uncertainty, tokens=tokens)

    def keep(self, state: SegmentState, rows: RowIndices) -> SegmentState:
        """Return the state of the given rows, trimmed to the longest."""
        lengths = state.lengths[rows]
        longest = int(lengths.max())
        feed = {name: _select(value, rows, longest) for name, value in state.feed.items()}
        marks = None if state.marks is None else _select(state.marks, rows, longest)
        return SegmentState(feed, _select(state.mask, rows, longest), lengths, state.segments_done, marks)

    # -- the rest of the `Backend` interface -----------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @cached_property
    def _weights(self) -> str:
        return hash_sources(*self.sources, prefix=self.runtime)

    def weights_fingerprint(self) -> str:
        """Return a hash of the graphs, including their weights, and of the runtime's version."""
        return self._weights

    def untrained_layers(self) -> tuple[int, ...]:
        """Return the layers of exits whose heads have not been trained."""
        return self.untrained

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        """Disable torch's gradients, for the policies."""
        with torch.inference_mode():
            yield

    def full_model(self, batch: Batch) -> Tensor:
        """Return the full model's logits, from all segments."""
        _, output = self.advance(self.embed(batch), self.exits[-1])
        return output.raw

    def hidden_states(self, batch: Batch) -> tuple[list[Tensor], Tensor, ExitOutput]:
        """Return the states at the early exits, the token mask, and the last exit's output."""
        state, states = self.embed(batch), []
        for point in self.exits:
            state, output = self.advance(state, point)
            if "hidden" in state.feed:  # not after the last segment
                states.append(torch.from_numpy(state.feed["hidden"]))
        return states, torch.from_numpy(state.mask), output


def hash_sources(*sources: Path | bytes, prefix: str = "") -> str:
    """Return a hash of a prefix and the contents of files or bytes, in order."""
    digest = hashlib.blake2b(prefix.encode(), digest_size=16)
    for source in sources:
        if isinstance(source, bytes):
            digest.update(source)
            continue
        with source.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _select(values: Array, rows: RowIndices, length: int) -> Array:
    """Return a contiguous copy of rows, trimmed to `length`.

    In numpy, because torch would wake up its own threads for it, which takes longer than all layers of a small model.
    """
    return np.ascontiguousarray(values[rows, :length])
