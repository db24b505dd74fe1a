"""An exported model as a stepper: one graph per segment, whoever runs it; rows are cut out between them, in numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
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
from offramp.answers.span import LOW, anywhere, summary
from offramp.core.stepper import Batch, ExitOutput, ExitPoint, Positions
from offramp.errors import BadInput

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
    depth: int = 0
    marks: Array | None = None  # of spans


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
        ids = batch["input_ids"].numpy()
        mask = batch["attention_mask"].numpy().astype(bool) if "attention_mask" in batch else np.ones(ids.shape, bool)
        if not mask[:, 0].all():
            row = int(np.flatnonzero(~mask[:, 0])[0])
            raise BadInput(f"Row {row} of the batch starts with padding; pad on the right.")
        lengths = mask.shape[1] - mask[:, ::-1].argmax(1)
        longest = int(lengths.max())
        feed = {name: batch[name].numpy()[:, :longest] for name in ("input_ids", "token_type_ids") if name in batch}
        if "token_type_ids" in self.graphs[0].inputs and "token_type_ids" not in feed:
            feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
        marks = batch["marks"].numpy()[:, :longest] if "marks" in batch else None
        return SegmentState(feed, mask[:, :longest], lengths, marks=marks)

    def advance(self, state: SegmentState, point: ExitPoint) -> tuple[SegmentState, ExitOutput]:
        """Run the segments up to the exit."""
        found: dict[str, Array] = {}
        for each, graph in zip(self.exits, self.graphs, strict=True):
            if state.depth < each.layer <= point.layer:
                feed = {**state.feed, "mask": state.mask}
                found = graph({name: value for name, value in feed.items() if name in graph.inputs})
                following = {"hidden": found["next"]} if "next" in found else {}
                state = replace(state, feed=following, depth=each.layer)
        logits, tokens = torch.from_numpy(found["logits"]), None
        if self.answer_type.is_span:
            real = torch.from_numpy(state.mask)
            tokens = logits.masked_fill(~real[..., None], LOW)
            logits = summary(tokens, anywhere(real) if state.marks is None else torch.from_numpy(state.marks))
        uncertainty = torch.from_numpy(found["uncertainty"]) if "uncertainty" in found else None
        return state, ExitOutput(point.number, point.layer, self.answer_type, logits, uncertainty, tokens=tokens)

    def keep(self, state: SegmentState, rows: Positions) -> SegmentState:
        """Go on with these rows, cut to the longest of them."""
        lengths = state.lengths[rows]
        longest = int(lengths.max())
        feed = {name: _some(value, rows, longest) for name, value in state.feed.items()}
        marks = None if state.marks is None else _some(state.marks, rows, longest)
        return SegmentState(feed, _some(state.mask, rows, longest), lengths, state.depth, marks)

    def join(self, states: Sequence[SegmentState]) -> SegmentState:
        """Go on with all of them, padded to the longest."""
        longest = max(state.mask.shape[1] for state in states)
        names = states[0].feed
        feed = {name: np.concatenate([_padded(state.feed[name], longest) for state in states]) for name in names}
        mask = np.concatenate([_padded(state.mask, longest) for state in states])
        lengths = np.concatenate([state.lengths for state in states])
        each = [_padded(state.marks, longest) for state in states if state.marks is not None]
        return SegmentState(feed, mask, lengths, states[0].depth, np.concatenate(each) if each else None)

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
        _, said = self.advance(self.embed(batch), self.exits[-1])
        return said.raw


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


def _padded(rows: Array, length: int) -> Array:
    """Filled up along the second axis."""
    more = [(0, 0)] * rows.ndim
    more[1] = (0, length - rows.shape[1])
    return np.pad(rows, more)
