"""What clients send and get: Hugging Face's, text-embeddings-inference's, vLLM's and the Open Inference Protocol's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from offramp.core.chunks import Text
from offramp.errors import BadInput
from offramp.model.config import AdaptiveConfig
from offramp.serving.rows import Replied

__all__ = [
    "Classify",
    "Hub",
    "Infer",
    "Infos",
    "Predict",
    "Question",
    "Spoken",
    "labelled",
    "texts_of_hub",
    "texts_of_infer",
    "texts_of_predict",
]

Words = Annotated[StrictStr, Field(max_length=10_000_000)]
OneOrTwo = Annotated[list[Words], Field(min_length=1, max_length=2)]  # a text, or a text and its partner
Count = Annotated[int, Field(ge=1, le=100_000)]


class Body(BaseModel):
    """A request; what nobody knows is ignored, as the other servers do."""

    model_config = ConfigDict(extra="ignore")


class PairOf(Body):
    """A text and its partner, as transformers' pipelines take it."""

    text: Words
    text_pair: Words | None = None


class Parameters(Body):
    """What a request may ask for."""

    top_k: Count | None = None
    truncate: StrictBool | None = None
    max_layers: Count | None = None
    policy: Annotated[StrictStr, Field(max_length=10_000)] | None = None
    deadline_ms: Annotated[float, Field(gt=0, le=1e9)] | None = None
    details: StrictBool = False


class Hub(Body):
    """`POST /`: `{"inputs": "x"}`, `{"inputs": ["x", "y"]}`, and pairs as `{"text", "text_pair"}`."""

    inputs: Words | PairOf | Annotated[list[Words | PairOf], Field(min_length=1)]
    parameters: Parameters | None = None
    details: StrictBool = False


class Predict(Body):
    """`POST /predict`: a text, a pair as a list of two, or a batch of lists of one or two."""

    inputs: Words | OneOrTwo | Annotated[list[OneOrTwo], Field(min_length=1)]
    raw_scores: StrictBool = False
    truncate: StrictBool | None = False
    max_layers: Count | None = None


class Classify(Body):
    """`POST /classify`, as vLLM's."""

    model: StrictStr | None = None
    input: Words | Annotated[list[Words], Field(min_length=1)]
    truncate: StrictBool | None = None


class Tensor(Body):
    """An input of the Open Inference Protocol."""

    name: StrictStr
    shape: list[StrictInt]
    datatype: Literal["BYTES"]
    data: list[Any]


class Infer(Body):
    """`POST /v2/models/{model}/infer`: one input of texts as BYTES, or two for pairs."""

    id: StrictStr | None = None
    inputs: Annotated[list[Tensor], Field(min_length=1, max_length=2)]
    parameters: Parameters | None = None


class Question(Body):
    """`POST /answer`."""

    question: Words
    context: Words


class Spoken(BaseModel):
    """A label and how probable it is."""

    label: str
    score: float


class Infos(BaseModel):
    """What `/info` tells."""

    model_config = ConfigDict(extra="allow")

    model: str
    version: str


def texts_of_hub(body: Hub) -> list[Text]:
    """As the engine takes them."""
    given = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    return [
        one if isinstance(one, str) else one.text if one.text_pair is None else (one.text, one.text_pair)
        for one in given
    ]


def texts_of_predict(body: Predict) -> tuple[list[Text], bool]:
    """The texts, and whether the reply is a batch."""
    if isinstance(body.inputs, str):
        return [body.inputs], False
    if isinstance(body.inputs[0], str):
        return [_one([str(part) for part in body.inputs])], False
    return [_one([str(part) for part in one]) for one in body.inputs], True


def _one(parts: list[str]) -> Text:
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def texts_of_infer(body: Infer) -> list[Text]:
    """One text per element; of two inputs pairs."""
    columns = []
    for tensor in body.inputs:
        flat = [part for row in tensor.data for part in (row if isinstance(row, list) else [row])]
        if not all(isinstance(part, str) for part in flat):
            raise BadInput(f"The input {tensor.name!r:.60} holds something else than texts.")
        expected = 1
        for size in tensor.shape:
            expected *= size
        if expected != len(flat):
            raise BadInput(
                f"The input {tensor.name!r:.60} has {len(flat)} texts, and its shape is {tensor.shape!s:.60}."
            )
        columns.append(flat)
    if len(columns) == 1:
        return list(columns[0])
    if len(columns[0]) != len(columns[1]):
        raise BadInput(f"Pairs need as many texts as partners; these are {len(columns[0])} and {len(columns[1])}.")
    return list(zip(*columns, strict=True))


def labelled(reply: Replied, config: AdaptiveConfig, raw: bool = False) -> list[list[Spoken]]:
    """Every label of every row, the likeliest first; a regression's value under its one label."""
    logits = torch.from_numpy(reply.logits)
    rows = (
        reply.logits.tolist() if raw else [scores for _, _, scores in config.answer_type.write(logits, config.labels)]
    )
    told = []
    for scores in rows:
        each = [Spoken(label=label, score=score) for label, score in zip(config.labels, scores, strict=True)]
        told.append(sorted(each, key=lambda one: -one.score))
    return told
