"""What comes out: answers as arrays for machines, one by one for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from offramp.answers.answer_type import AnswerType

__all__ = ["Answer", "Answers", "Decoding", "Endpoint", "ModelCard", "RowOutputs", "TextAnswers", "joined"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one text, and the layer that it exited at.

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

    def to_dict(self) -> dict[str, Any]:
        """As a line of a file has it; the keys are the answer type's `fields`."""
        return {"label": self.label, "score": round(self.score, 6), "exit_layer": self.exit_layer}


@dataclass(frozen=True)
class RowOutputs:
    """What rows exited with, in the rows' order."""

    logits: Array  # (rows, columns)
    exit: NDArray[np.int64]  # (rows,), the exit's number, from 1
    layer: NDArray[np.int64]  # (rows,)


@dataclass(frozen=True)
class Decoding:
    """What a model's config says about how its outputs become answers."""

    labels: tuple[str, ...]
    no_answer: float | None = None  # of spans: by how much "no answer" must score higher; None: there is always one


@dataclass(frozen=True)
class Answers:
    """Answers to examples, in their order; iterating gives one `Answer` after the other."""

    layer: NDArray[np.int64]  # (examples,), the deepest that one of the example's rows exited at

    def __len__(self) -> int:
        return len(self.layer)

    def __iter__(self) -> Iterator[Answer]:
        raise NotImplementedError

    @property
    def values(self) -> Array:
        """What two models' answers are compared by: classes, 0 and 1 per label, values, texts."""
        raise NotImplementedError

    @property
    def score(self) -> NDArray[np.float64]:
        """How probable each answer is (of a regression its value)."""
        raise NotImplementedError

    def excerpt(self, index: int, example: Any, longest: int) -> str | list[str]:
        """An example as a report shows it."""
        return example[:longest] if isinstance(example, str) else [part[:longest] for part in example]


@dataclass(frozen=True)
class TextAnswers(Answers):
    """One row per text: its logits at the exit where it left."""

    logits: NDArray[np.float32]  # (texts, classes)
    exit: NDArray[np.int64]  # (texts,), the exit's number, from 1
    answer_type: AnswerType
    labels: tuple[str, ...]

    def __iter__(self) -> Iterator[Answer]:
        each = self.answer_type.write(torch.from_numpy(self.logits), self.labels)
        for (label, score, probabilities), layer in zip(each, self.layer.tolist(), strict=True):
            yield Answer(label, score, layer, probabilities, self.labels)

    @property
    def values(self) -> Array:
        """Classes, 0 and 1 per label, or values."""
        return self.answer_type.answers(self.logits)

    @property
    def score(self) -> NDArray[np.float64]:
        """The answer's probability, or the value."""
        return np.array([score for _, score, _ in self.answer_type.write(torch.from_numpy(self.logits), self.labels)])


def joined(parts: Sequence[Answers]) -> Answers:
    """Answers to several lists of examples, one after the other."""
    first = parts[0]
    names = [one.name for one in fields(first) if isinstance(getattr(first, one.name), np.ndarray)]
    changed: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(first, **changed)


@dataclass(frozen=True)
class ModelCard:
    """What a model card says about a kind of answer."""

    tag: str  # the Hub's pipeline tag
    title: str
    usage: str
    auto: str  # which of transformers' classes load it, too


@dataclass(frozen=True)
class Endpoint:
    """A route of the server: what a client sends, the examples in it, what it gets back.

    `parameters` gives the request's options by name (policy, max_layers, deadline_ms, truncate); `reply` makes the
    response of the answers, the parsed body, and what else the server knows of the request.
    """

    path: str
    summary: str
    request: Any  # a pydantic model
    response: Any  # a type that describes the response
    examples: Callable[[Any], Sequence[Any]]
    parameters: Callable[[Any], Mapping[str, Any]]
    reply: Callable[[Answers, Any, Mapping[str, Any]], Any]
