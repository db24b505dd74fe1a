"""What comes out: answers as arrays for machines, one by one for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offramp.answers import AnswerType

__all__ = ["Answer", "Answers", "SpanAnswer", "SpanAnswers"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One text's answer and the layer that it left at.

    Single-label: `label` is the class, `score` its probability. Multi-label: `label` lists the labels above
    one half, `score` is the largest probability. Regression: `label` is None, `score` is the value.
    """

    label: str | list[str] | None
    score: float
    exit_layer: int
    _probabilities: list[float] = field(repr=False, compare=False)
    _labels: tuple[str, ...] = field(repr=False, compare=False)

    @property
    def scores(self) -> dict[str, float]:
        """Every label's probability (regression: the value under the output's name)."""
        return dict(zip(self._labels, self._probabilities, strict=True))

    def told(self) -> dict[str, Any]:
        """As a line of a file has it."""
        return {"label": self.label, "score": round(self.score, 6), "exit_layer": self.exit_layer}


@dataclass(frozen=True, slots=True)
class SpanAnswer(Answer):
    """A question's answer: `label` is a part of its context, from character `start` to `end`; empty: it has none there.

    `score` is the probability that the window which it came from gives it, `exit_layer` the deepest layer that one of
    the question's windows left at.
    """

    start: int | None
    end: int | None

    @property
    def text(self) -> str:
        """The answer in words."""
        return str(self.label)

    def told(self) -> dict[str, Any]:
        """As a line of a file has it."""
        told = {"answer": self.text, "score": round(self.score, 6), "start": self.start, "end": self.end}
        return told | {"exit_layer": self.exit_layer}


@dataclass(frozen=True)
class SpanAnswers:
    """Questions' answers, in the questions' order."""

    texts: NDArray[Any]
    score: NDArray[np.float64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    layer: NDArray[np.int64]  # the deepest of its windows'

    @classmethod
    def joined(cls, parts: Sequence[SpanAnswers]) -> SpanAnswers:
        """Several one after the other; none is an empty one."""
        none = np.empty(0, np.int64)
        every = [cls(np.empty(0, object), np.empty(0), none, none, none), *parts]
        names = ("texts", "score", "start", "end", "layer")
        arrays: list[Any] = [np.concatenate([getattr(one, name) for one in every]) for name in names]
        return cls(*arrays)

    def __len__(self) -> int:
        return len(self.texts)

    def written(self, answer_type: AnswerType, labels: tuple[str, ...]) -> Iterator[SpanAnswer]:
        """One answer after the other, as users see them."""
        columns = (self.texts, self.score, self.start, self.end, self.layer)
        for text, score, start, end, layer in zip(*(column.tolist() for column in columns), strict=True):
            yield SpanAnswer(text, score, layer, [score], (text,), start if text else None, end if text else None)


@dataclass(frozen=True)
class Answers:
    """Where texts left and what the exit said there, in the texts' order."""

    logits: NDArray[np.float32]  # (texts, classes)
    exit: NDArray[np.int64]  # (texts,), the exit's number, from 1
    layer: NDArray[np.int64]  # (texts,), from 1

    def __len__(self) -> int:
        return len(self.logits)

    @classmethod
    def joined(cls, parts: Sequence[Answers], classes: int) -> Answers:
        """Several one after the other; none is an empty one."""
        empty = cls(np.empty((0, classes), np.float32), np.empty(0, np.int64), np.empty(0, np.int64))
        every = [empty, *parts]
        arrays: list[Any] = [
            np.concatenate([getattr(one, name) for one in every]) for name in ("logits", "exit", "layer")
        ]
        return cls(*arrays)

    def written(self, answer_type: AnswerType, labels: tuple[str, ...]) -> Iterator[Answer]:
        """One answer after the other, as users see them."""
        each = answer_type.write(torch.from_numpy(self.logits), labels)
        for (label, score, probabilities), layer in zip(each, self.layer.tolist(), strict=True):
            yield Answer(label, score, layer, probabilities, labels)
