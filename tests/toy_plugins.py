"""An answer type and a backend defined outside the package, as a plugin would define them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

import offramp
from offramp.answers.answer import Answer, Answers, Decoding, Endpoint, RowOutputs
from offramp.answers.single_label import SingleLabel
from offramp.answers.texts import TextRowEncoder
from offramp.core.batch import EncodedRows
from offramp.data.metrics import METRICS, Metric
from offramp.runtimes.torch import TorchStepper


@dataclass(frozen=True)
class AnyAnswers(Answers):
    """The probability that any text of an example belongs to the last class."""

    probabilities: np.ndarray
    labels: tuple[str, ...]

    def __iter__(self):
        for probability, layer in zip(self.probabilities.tolist(), self.layer.tolist(), strict=True):
            scores = [1 - probability, probability]
            yield Answer(self.labels[int(probability > 0.5)], probability, layer, scores, self.labels)

    @property
    def values(self):
        return (self.probabilities > 0.5).astype(np.int64)

    @property
    def score(self):
        return self.probabilities


class AnyOf(SingleLabel):
    """An example is two texts, one row each; it belongs to the last class if either text does."""

    name: ClassVar[str] = "any_of"
    cli_name: ClassVar[str] = "any-of"
    metric: ClassVar[str] = "any_acc"
    metrics: ClassVar[tuple[str, ...]] = ("any_acc",)
    multiple_rows: ClassVar[bool] = True
    unit: ClassVar[str] = "example"
    submission_formats: ClassVar[tuple[str, ...]] = ()

    def encoder(self, tokenizer: Any, limit: int, pairs: bool | None = None) -> Any:
        texts = TextRowEncoder(tokenizer, limit, False)

        def encode(examples: Sequence[Any], seen: int) -> EncodedRows:
            rows = texts([part for example in examples for part in example], 2 * seen)
            return replace(rows, examples=examples, group=np.repeat(np.arange(len(examples)), 2))

        return encode

    def warmup_example(self, pairs: bool | None) -> Any:
        return "a text", "another"

    def decode(self, outputs: RowOutputs, group: Any, examples: Any, decoding: Decoding) -> Answers:
        scores = torch.softmax(torch.from_numpy(np.asarray(outputs.logits)), -1)[:, 1].numpy()
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        maxima = np.maximum.reduceat(scores, starts) if len(scores) else scores
        layers = np.maximum.reduceat(outputs.layer, starts) if len(scores) else outputs.layer
        return AnyAnswers(layers, maxima, decoding.labels)

    def endpoints(self) -> Sequence[Endpoint]:
        from offramp.answers.request import RequestBody, RequestText

        class Any2(RequestBody):
            texts: tuple[RequestText, RequestText]

        def reply(answers: Any, body: Any, about: Any) -> dict[str, Any]:
            return next(iter(answers)).to_dict()

        return [Endpoint("/any", "toy", Any2, dict[str, Any], lambda body: [tuple(body.texts)], lambda body: {}, reply)]


def register_answer_type() -> AnyOf:
    """Register the answer type and its metric."""
    answer_type = offramp.ANSWER_TYPES.register(AnyOf())
    accuracy = METRICS["acc"]
    METRICS.register(Metric("any_acc", accuracy.compute, (answer_type,), per_row=accuracy.per_row))
    return answer_type


@dataclass(frozen=True)
class MirrorStepper(TorchStepper):
    """PyTorch under another name."""

    @property
    def backend(self) -> str:
        return "mirror"


def load_mirror(folder: str, options: Any) -> offramp.Runner:
    model = offramp.AdaptiveModel.from_pretrained(folder).eval()
    runner = model.runner(options.max_length)
    parts = {name: getattr(model.stepper, name) for name in ("family", "encoder", "heads", "answer_type")}
    config = offramp.AdaptiveConfig.from_pretrained(folder)  # with the guarantee of this backend, not of torch
    return replace(runner, config=config, stepper=MirrorStepper(**parts))


def register_backend() -> offramp.Runtime:
    """Register the backend."""
    return offramp.RUNTIMES.register(offramp.Runtime("mirror", "Mirror", loader=load_mirror))
