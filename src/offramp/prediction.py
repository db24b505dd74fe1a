"""From texts to answers, in the texts' order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from offramp.batching import answering, check_budget, chunks
from offramp.errors import BadInput
from offramp.policies import Policy
from offramp.reading import Text
from offramp.stepper import Problem

if TYPE_CHECKING:
    from offramp.model import AdaptiveModel

__all__ = ["Answer", "Text", "predict"]


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


def predict(
    model: AdaptiveModel,
    texts: Iterable[Text],
    policy: Policy,
    *,
    max_layers: int | None = None,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> Iterator[Answer]:
    """Answers in the texts' order; at most one chunk of texts is in memory at a time."""
    if isinstance(texts, str):
        raise BadInput("predict takes a list or an iterator of texts; put the one text into a list.")
    return _stream(model, texts, policy, max_layers, check_budget(model, batch_tokens), progress)


def _stream(
    model: AdaptiveModel,
    texts: Iterable[Text],
    policy: Policy,
    max_layers: int | None,
    budget: int,
    progress: bool | None,
) -> Iterator[Answer]:
    for chunk in chunks(model, texts, budget, progress):
        with answering(model):
            left = [model.answer(batch, policy, max_layers) for batch in chunk.batches()]
            back = torch.from_numpy(chunk.back)
            logits = torch.cat([one.logits for one in left]).float().cpu()[back]
            layers = torch.cat([one.layer for one in left]).cpu()[back]
        yield from _answers(model, logits, layers)


def _answers(model: AdaptiveModel, logits: Tensor, layers: Tensor) -> Iterator[Answer]:
    labels, problem = model.config.labels, model.config.problem
    exit_layers = layers.tolist()
    if problem is Problem.REGRESSION:
        for values, layer in zip(logits.tolist(), exit_layers, strict=True):
            yield Answer(None, values[0], layer, values, labels)
    elif problem is Problem.MULTI_LABEL:
        chances = torch.sigmoid(logits)
        for row, layer in zip(chances.tolist(), exit_layers, strict=True):
            chosen = [label for label, p in zip(labels, row, strict=True) if p > 0.5]
            yield Answer(chosen, max(row), layer, row, labels)
    else:
        chances = torch.softmax(logits, dim=-1)
        best, which = chances.max(-1)
        for score, index, layer, row in zip(best.tolist(), which.tolist(), exit_layers, chances.tolist(), strict=True):
            yield Answer(labels[index], score, layer, row, labels)
