"""Predictions: `Answers` as arrays, `Answer` one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from offramp.answers.answer_type import AnswerType

__all__ = ["Answer", "Answers", "Decoding", "Endpoint", "ModelCard", "RowOutputs", "TextAnswers", "concatenate"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The prediction for one text, and the layer at which it exited.

    Single-label: `label` is the class, `score` its probability. Multi-label: `label` lists the labels with a
    probability above 0.5, `score` is the largest probability. Regression: `label` is None, `score` is the value.
    """

    label: str | list[str] | None
    score: float
    exit_layer: int
    _probabilities: list[float] = field(repr=False, compare=False)
    _labels: tuple[str, ...] = field(repr=False, compare=False)

    @property
    def scores(self) -> dict[str, float]:
        """Probability of each label (regression: the value under the name of the output)."""
        return dict(zip(self._labels, self._probabilities, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as a dict with the answer type's `fields`."""
        return {"label": self.label, "score": round(self.score, 6), "exit_layer": self.exit_layer}


@dataclass(frozen=True)
class RowOutputs:
    """Outputs of rows at the exits where they exited, in the order of the rows."""

    logits: Array  # (rows, columns)
    exit: NDArray[np.int64]  # (rows,), numbers of the exits, from 1
    layer: NDArray[np.int64]  # (rows,)


@dataclass(frozen=True)
class Decoding:
    """Settings in a model's config for turning outputs into predictions."""

    labels: tuple[str, ...]
    no_answer: float | None = None  # spans: margin by which "no answer" must win; None: always answer
    options: Mapping[str, Any] | None = None  # of the answer type, from the config
    depth: int | None = None  # number of layers of the full model


@dataclass(frozen=True)
class Answers:
    """Predictions in the order of the examples; iterating yields `Answer` objects."""

    layer: NDArray[np.int64]  # (examples,), the deepest exit layer of the example's rows

    def __len__(self) -> int:
        return len(self.layer)

    def __iter__(self) -> Iterator[Answer]:
        raise NotImplementedError

    @property
    def values(self) -> Array:
        """Values to compare predictions by: classes, 0 and 1 per label, regression values, or texts."""
        raise NotImplementedError

    @property
    def score(self) -> NDArray[np.float64]:
        """Probability of each prediction (regression: the value)."""
        raise NotImplementedError

    @property
    def row_layers(self) -> NDArray[np.int64]:
        """Exit layers for averages: those of the documents of rankings, otherwise those of the examples."""
        return self.layer

    def take(self, index: int) -> Answers:
        """Return one prediction, as arrays of length 1."""
        return replace(self, **{name: getattr(self, name)[index : index + 1] for name in _array_names(self)})

    def excerpt(self, index: int, example: Any, max_length: int) -> str | list[str]:
        """Return an example shortened for a report."""
        return example[:max_length] if isinstance(example, str) else [part[:max_length] for part in example]


@dataclass(frozen=True)
class TextAnswers(Answers):
    """Predictions with one row per text."""

    logits: NDArray[np.float32]  # (texts, classes), at the exit of each text
    exit: NDArray[np.int64]  # (texts,), numbers of the exits, from 1
    answer_type: AnswerType
    labels: tuple[str, ...]

    def __iter__(self) -> Iterator[Answer]:
        predictions = self.answer_type.iter_predictions(torch.from_numpy(self.logits), self.labels)
        for (label, score, probabilities), layer in zip(predictions, self.layer.tolist(), strict=True):
            yield Answer(label, score, layer, probabilities, self.labels)

    @property
    def values(self) -> Array:
        """Classes, 0 and 1 per label, or regression values."""
        return self.answer_type.answers(self.logits)

    @property
    def score(self) -> NDArray[np.float64]:
        """Probability of each prediction, or the regression value."""
        predictions = self.answer_type.iter_predictions(torch.from_numpy(self.logits), self.labels)
        return np.array([score for _, score, _ in predictions])


def concatenate(parts: Sequence[Answers]) -> Answers:
    """Concatenate the predictions for several lists of examples."""
    first = parts[0]
    if len(parts) == 1:
        return first
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in _array_names(first)
    }
    return replace(first, **arrays)


def _array_names(answers: Answers) -> list[str]:
    return [entry.name for entry in fields(answers) if isinstance(getattr(answers, entry.name), np.ndarray)]


@dataclass(frozen=True)
class ModelCard:
    """The parts of a model card that depend on the answer type."""

    tag: str  # pipeline tag on the Hub
    title: str
    usage: str
    transformers: str  # code that loads it with transformers


@dataclass(frozen=True)
class Endpoint:
    """A route of the server: its request, the examples in it, and its response.

    `parameters` returns the options of a request by name (policy, max_layers, deadline_ms, truncate, top_k); `reply`
    returns the response for the predictions, the parsed body and further facts about the request.
    """

    path: str
    summary: str
    request: Any  # a pydantic model
    response: Any  # a type that describes the response
    examples: Callable[[Any], Sequence[Any]]
    parameters: Callable[[Any], Mapping[str, Any]]
    reply: Callable[[Answers, Any, Mapping[str, Any]], Any]
