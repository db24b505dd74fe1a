"""Server routes for one prediction per text, compatible with existing clients.

The APIs of Hugging Face text classification, text-embeddings-inference, vLLM and the Open Inference Protocol.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from offramp.answers.answer import Endpoint, TextAnswers
from offramp.answers.request import Layers, Parameters, RequestBody, RequestText
from offramp.data.reading import Text
from offramp.errors import BadInput

__all__ = ["ROUTES"]

TextOrPair = Annotated[list[RequestText], Field(min_length=1, max_length=2)]


class PipelinePair(RequestBody):
    """A text or a pair of texts in the format of transformers pipelines."""

    text: RequestText
    text_pair: RequestText | None = None


class HubRequest(RequestBody):
    """`POST /`: `{"inputs": "x"}`, `{"inputs": ["x", "y"]}`, and pairs as `{"text", "text_pair"}`."""

    inputs: RequestText | PipelinePair | Annotated[list[RequestText | PipelinePair], Field(min_length=1)]
    parameters: Parameters | None = None
    details: StrictBool = False


class PredictRequest(RequestBody):
    """`POST /predict`: a text, a pair as a list of two, or a batch of lists of one or two."""

    inputs: RequestText | TextOrPair | Annotated[list[TextOrPair], Field(min_length=1)]
    raw_scores: StrictBool = False
    truncate: StrictBool | None = False
    max_layers: Layers | None = None


class ClassifyRequest(RequestBody):
    """`POST /classify`, in the format of vLLM."""

    model: StrictStr | None = None
    input: RequestText | Annotated[list[RequestText], Field(min_length=1)]
    truncate: StrictBool | None = None


class InferInput(RequestBody):
    """An input tensor of the Open Inference Protocol."""

    name: StrictStr
    shape: list[StrictInt]
    datatype: Literal["BYTES"]
    data: list[Any]


class InferRequest(RequestBody):
    """`POST /v2/models/{model}/infer`: one input of texts as BYTES, or two for pairs."""

    id: StrictStr | None = None
    inputs: Annotated[list[InferInput], Field(min_length=1, max_length=2)]
    parameters: Parameters | None = None


class LabelScore(BaseModel):
    """A label and its probability."""

    label: str
    score: float


# -- requests ------------------------------------------------------------------------------------------


def _hub_texts(body: HubRequest) -> list[Text]:
    items = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    return [
        item if isinstance(item, str) else item.text if item.text_pair is None else (item.text, item.text_pair)
        for item in items
    ]


def _predict_texts(body: PredictRequest) -> list[Text]:
    if isinstance(body.inputs, str):
        return [body.inputs]
    if isinstance(body.inputs[0], str):
        return [_text_or_pair([str(part) for part in body.inputs])]
    return [_text_or_pair([str(part) for part in parts]) for parts in body.inputs]


def _is_batch(body: PredictRequest) -> bool:
    return not isinstance(body.inputs, str) and not isinstance(body.inputs[0], str)


def _text_or_pair(parts: list[str]) -> Text:
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def _infer_texts(body: InferRequest) -> list[Text]:
    """Return one text per element, or pairs from two inputs."""
    columns = []
    for tensor in body.inputs:
        flat = [item for row in tensor.data for item in (row if isinstance(row, list) else [row])]
        if not all(isinstance(item, str) for item in flat):
            raise BadInput(f"The input {tensor.name!r:.60} contains elements that are not strings.")
        expected = 1
        for size in tensor.shape:
            expected *= size
        if expected != len(flat):
            raise BadInput(
                f"The input {tensor.name!r:.60} has {len(flat)} texts, but its shape is {tensor.shape!s:.60}."
            )
        columns.append(flat)
    if len(columns) == 1:
        return list(columns[0])
    if len(columns[0]) != len(columns[1]):
        raise BadInput(f"Pairs need as many first texts as second texts, got {len(columns[0])} and {len(columns[1])}.")
    return list(zip(*columns, strict=True))


def _parameters(body: Any) -> dict[str, Any]:
    """Return the parameters of a request; by default, long texts are truncated."""
    parameters = body.parameters or Parameters()
    return {"truncate": True} | parameters.model_dump(exclude_none=True, exclude={"top_k", "details"})


# -- responses -----------------------------------------------------------------------------------------


def _label_scores(answers: TextAnswers, raw: bool = False) -> list[list[LabelScore]]:
    """Return the labels of each row with their scores, the highest first; a regression has a single one."""
    rows = answers.logits.tolist() if raw else [list(answer.scores.values()) for answer in answers]
    sorted_rows = []
    for scores in rows:
        row = [LabelScore(label=label, score=score) for label, score in zip(answers.labels, scores, strict=True)]
        sorted_rows.append(sorted(row, key=lambda label_score: -label_score.score))
    return sorted_rows


def _hub_reply(answers: Any, body: HubRequest, request_info: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    parameters = body.parameters or Parameters()
    rows = [[entry.model_dump() for entry in row[: parameters.top_k]] for row in _label_scores(answers)]
    if parameters.details or body.details:
        for row, layer in zip(rows, answers.layer.tolist(), strict=True):
            row[0] |= {"exit_layer": layer, "outside_guarantee": request_info["outside"]}
    return rows


def _predict_reply(answers: Any, body: PredictRequest, request_info: Mapping[str, Any]) -> Any:
    rows = _label_scores(answers, body.raw_scores)
    return rows if _is_batch(body) else rows[0]


def _classify_reply(answers: Any, body: ClassifyRequest, request_info: Mapping[str, Any]) -> dict[str, Any]:
    data = []
    for index, row in enumerate(_label_scores(answers)):
        scores = {entry.label: entry.score for entry in row}
        probs = [scores[label] for label in answers.labels]
        data.append({"index": index, "label": row[0].label, "probs": probs, "num_classes": len(probs)})
    tokens = request_info["tokens"]
    return {
        "id": f"classify-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": body.model or request_info["model"],
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }


def _infer_reply(answers: Any, body: InferRequest, request_info: Mapping[str, Any]) -> dict[str, Any]:
    rows = _label_scores(answers)
    outputs = [
        _output_tensor("label", "BYTES", [row[0].label for row in rows]),
        _output_tensor("score", "FP32", [row[0].score for row in rows]),
        _output_tensor("exit_layer", "INT64", answers.layer.tolist()),
    ]
    reply = {"model_name": request_info["model"], "model_version": "1", "outputs": outputs}
    return reply | ({"id": body.id} if body.id else {})


def _output_tensor(name: str, datatype: str, data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}


ROUTES = (
    Endpoint(
        "/",
        "Predict (Hugging Face text classification)",
        HubRequest,
        list[list[dict[str, Any]]],
        _hub_texts,
        _parameters,
        _hub_reply,
    ),
    Endpoint(
        "/predict",
        "Predict (text-embeddings-inference)",
        PredictRequest,
        list[LabelScore] | list[list[LabelScore]],
        _predict_texts,
        lambda body: {"max_layers": body.max_layers, "truncate": bool(body.truncate)},
        _predict_reply,
    ),
    Endpoint(
        "/classify",
        "Predict (vLLM)",
        ClassifyRequest,
        dict[str, Any],
        lambda body: [body.input] if isinstance(body.input, str) else list(body.input),
        lambda body: {"truncate": True if body.truncate is None else body.truncate},
        _classify_reply,
    ),
    Endpoint(
        "/v2/models/{model}/infer",
        "Predict (Open Inference Protocol)",
        InferRequest,
        dict[str, Any],
        _infer_texts,
        _parameters,
        _infer_reply,
    ),
)
