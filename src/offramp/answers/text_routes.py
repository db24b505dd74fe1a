"""The server's routes for one answer per text, as existing clients speak them.

Hugging Face's text classification, text-embeddings-inference's, vLLM's, and the Open Inference Protocol's.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from offramp.answers.answer import Endpoint, TextAnswers
from offramp.answers.request import Body, Layers, Parameters, Words
from offramp.data.reading import Text
from offramp.errors import BadInput

__all__ = ["ROUTES"]

OneOrTwo = Annotated[list[Words], Field(min_length=1, max_length=2)]  # a text, or a pair


class PairOf(Body):
    """A pair of texts, as transformers' pipelines take it."""

    text: Words
    text_pair: Words | None = None


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
    max_layers: Layers | None = None


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


class LabelScore(BaseModel):
    """A label and how probable it is."""

    label: str
    score: float


# -- what was sent -------------------------------------------------------------------------------------


def _texts_of_hub(body: Hub) -> list[Text]:
    given = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    return [
        one if isinstance(one, str) else one.text if one.text_pair is None else (one.text, one.text_pair)
        for one in given
    ]


def _texts_of_predict(body: Predict) -> list[Text]:
    if isinstance(body.inputs, str):
        return [body.inputs]
    if isinstance(body.inputs[0], str):
        return [_text([str(part) for part in body.inputs])]
    return [_text([str(part) for part in one]) for one in body.inputs]


def _is_batch(body: Predict) -> bool:
    return not isinstance(body.inputs, str) and not isinstance(body.inputs[0], str)


def _text(parts: list[str]) -> Text:
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def _texts_of_infer(body: Infer) -> list[Text]:
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
        raise BadInput(f"Pairs need as many first as second texts; these are {len(columns[0])} and {len(columns[1])}.")
    return list(zip(*columns, strict=True))


def _given(body: Any) -> dict[str, Any]:
    """Its parameters; texts that are too long are cut unless it says otherwise."""
    asked = body.parameters or Parameters()
    return {"truncate": True} | asked.model_dump(exclude_none=True, exclude={"top_k", "details"})


# -- what comes back -----------------------------------------------------------------------------------


def _labelled(answers: TextAnswers, raw: bool = False) -> list[list[LabelScore]]:
    """Every label of every row, the likeliest first; a regression's value under its one label."""
    rows = answers.logits.tolist() if raw else [list(answer.scores.values()) for answer in answers]
    labelled = []
    for scores in rows:
        each = [LabelScore(label=label, score=score) for label, score in zip(answers.labels, scores, strict=True)]
        labelled.append(sorted(each, key=lambda one: -one.score))
    return labelled


def _hub(answers: Any, body: Hub, about: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    asked = body.parameters or Parameters()
    rows = [[one.model_dump() for one in row[: asked.top_k]] for row in _labelled(answers)]
    if asked.details or body.details:
        for row, layer in zip(rows, answers.layer.tolist(), strict=True):
            row[0] |= {"exit_layer": layer, "outside_guarantee": about["outside"]}
    return rows


def _predict(answers: Any, body: Predict, about: Mapping[str, Any]) -> Any:
    rows = _labelled(answers, body.raw_scores)
    return rows if _is_batch(body) else rows[0]


def _classify(answers: Any, body: Classify, about: Mapping[str, Any]) -> dict[str, Any]:
    data = []
    for index, row in enumerate(_labelled(answers)):
        probs = {one.label: one.score for one in row}
        each = [probs[label] for label in answers.labels]
        data.append({"index": index, "label": row[0].label, "probs": each, "num_classes": len(each)})
    tokens = about["tokens"]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    made = {"id": f"classify-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
    return made | {"model": body.model or about["model"], "data": data, "usage": usage}


def _infer(answers: Any, body: Infer, about: Mapping[str, Any]) -> dict[str, Any]:
    rows = _labelled(answers)
    outputs = [
        _tensor("label", "BYTES", [row[0].label for row in rows]),
        _tensor("score", "FP32", [row[0].score for row in rows]),
        _tensor("exit_layer", "INT64", answers.layer.tolist()),
    ]
    made = {"model_name": about["model"], "model_version": "1", "outputs": outputs}
    return made | ({"id": body.id} if body.id else {})


def _tensor(name: str, kind: str, data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": kind, "shape": [len(data)], "data": data}


ROUTES = (
    Endpoint("/", "Hugging Face's text classification", Hub, list[list[dict[str, Any]]], _texts_of_hub, _given, _hub),
    Endpoint(
        "/predict",
        "text-embeddings-inference's",
        Predict,
        list[LabelScore] | list[list[LabelScore]],
        _texts_of_predict,
        lambda body: {"max_layers": body.max_layers, "truncate": bool(body.truncate)},
        _predict,
    ),
    Endpoint(
        "/classify",
        "vLLM's",
        Classify,
        dict[str, Any],
        lambda body: [body.input] if isinstance(body.input, str) else list(body.input),
        lambda body: {"truncate": True if body.truncate is None else body.truncate},
        _classify,
    ),
    Endpoint(
        "/v2/models/{model}/infer", "Open Inference Protocol", Infer, dict[str, Any], _texts_of_infer, _given, _infer
    ),
)
