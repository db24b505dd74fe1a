"""A kind of answer and a backend as somebody outside the package would write them, each in one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

import offramp
from offramp.answers.answer import Answer, Answers, Decoding, Endpoint, RowOutputs
from offramp.answers.single_label import SingleLabel
from offramp.answers.texts import TextEncoder
from offramp.core.batch import EncodedRows
from offramp.data.metrics import METRICS, Metric
from offramp.runtimes.torch import TorchStepper


@dataclass(frozen=True)
class AnyAnswers(Answers):
    """Whether any part of an example is of the last class, and how probable that is."""

    chances: np.ndarray
    labels: tuple[str, ...]

    def __iter__(self):
        for chance, layer in zip(self.chances.tolist(), self.layer.tolist(), strict=True):
            yield Answer(self.labels[int(chance > 0.5)], chance, layer, [1 - chance, chance], self.labels)

    @property
    def values(self):
        return (self.chances > 0.5).astype(np.int64)

    @property
    def score(self):
        return self.chances


class AnyOf(SingleLabel):
    """An example is two texts, each a row; it is of the last class if any of them is."""

    name: ClassVar[str] = "any_of"
    short: ClassVar[str] = "any-of"
    metric: ClassVar[str] = "any_acc"
    metrics: ClassVar[tuple[str, ...]] = ("any_acc",)
    several_rows: ClassVar[bool] = True
    unit: ClassVar[str] = "example"
    submissions: ClassVar[tuple[str, ...]] = ()

    def encoder(self, tokenizer: Any, limit: int, pairs: bool | None = None) -> Any:
        texts = TextEncoder(tokenizer, limit, False)

        def encode(examples: Sequence[Any], seen: int) -> EncodedRows:
            rows = texts([part for example in examples for part in example], 2 * seen)
            return replace(rows, examples=examples, group=np.repeat(np.arange(len(examples)), 2))

        return encode

    def example_for(self, pairs: bool | None) -> Any:
        return "a text", "another"

    def decode(self, outputs: RowOutputs, group: Any, examples: Any, by: Decoding) -> Answers:
        chances = torch.softmax(torch.from_numpy(np.asarray(outputs.logits)), -1)[:, 1].numpy()
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        most = np.maximum.reduceat(chances, starts) if len(chances) else chances
        layers = np.maximum.reduceat(outputs.layer, starts) if len(chances) else outputs.layer
        return AnyAnswers(layers, most, by.labels)

    def endpoints(self) -> Sequence[Endpoint]:
        from offramp.answers.request import Body, Words

        class Any2(Body):
            texts: tuple[Words, Words]

        def reply(answers: Any, body: Any, about: Any) -> dict[str, Any]:
            return next(iter(answers)).to_dict()

        return [Endpoint("/any", "toy", Any2, dict[str, Any], lambda body: [tuple(body.texts)], lambda body: {}, reply)]


def register_kind() -> AnyOf:
    """The kind, its line in the table, its metric."""
    kind = offramp.ANSWER_TYPES.register(AnyOf())
    compute = METRICS["acc"]
    METRICS.register(Metric("any_acc", compute.compute, (kind,), per_row=compute.per_row))
    return kind


@dataclass(frozen=True)
class MirrorStepper(TorchStepper):
    """PyTorch under another name."""

    @property
    def backend(self) -> str:
        return "mirror"


def load_mirror(folder: str, options: Any) -> offramp.Runner:
    model = offramp.AdaptiveModel.from_pretrained(folder).eval()
    runner = model.runner(options.max_length)
    parts = {name: getattr(model.stepper, name) for name in ("family", "encoder", "modules", "answer_type")}
    config = offramp.AdaptiveConfig.from_pretrained(folder)  # with the guarantee of this backend, not of torch
    return replace(runner, config=config, stepper=MirrorStepper(**parts))


def register_backend() -> offramp.Runtime:
    """The backend and its line."""
    return offramp.RUNTIMES.register(offramp.Runtime("mirror", "Mirror", loader=load_mirror))
