"""Server routes for one prediction per text, compatible with existing clients.

The APIs of Hugging Face text classification, text-embeddings-inference, vLLM and the Open Inference Protocol.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field, StrictBool, StrictStr
from torch import Tensor

from offramp.answers.answer import Endpoint, TextAnswers
from offramp.answers.open_inference import OPEN_INFERENCE_ROUTES
from offramp.answers.request import Layers, NonEmpty, Parameters, RequestBody, RequestText
from offramp.answers.softmax import softmax
from offramp.data.reading import Text

__all__ = ["ROUTES"]

TextOrPair = Annotated[NonEmpty[RequestText], Field(max_length=2)]
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": softmax,
    "sigmoid": torch.sigmoid,
    "none": torch.nn.Identity(),
}


class PipelinePair(RequestBody):
    """A text or a pair of texts in the format of transformers pipelines."""

    text: RequestText
    text_pair: RequestText | None = None


class HubParameters(Parameters):
    """Options of a request, with those of transformers pipelines."""

    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None


class HubRequest(RequestBody):
    """`POST /`: `{"inputs": "x"}`, `{"inputs": ["x", "y"]}`, and pairs as `{"text", "text_pair"}`."""

    inputs: RequestText | PipelinePair | NonEmpty[RequestText | PipelinePair]
    parameters: HubParameters | None = None
    details: StrictBool = False


class PredictRequest(RequestBody):
    """`POST /predict`: a text, a pair as a list of two, or a batch of lists of one or two."""

    inputs: RequestText | TextOrPair | NonEmpty[TextOrPair]
    raw_scores: StrictBool = False
    truncate: StrictBool | None = False
    max_layers: Layers | None = None


class ClassifyRequest(RequestBody):
    """`POST /classify`, in the format of vLLM."""

    model: StrictStr | None = None
    input: RequestText | NonEmpty[RequestText]
    truncate: StrictBool | None = None


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


def _parameters(body: HubRequest) -> dict[str, Any]:
    """Return the parameters of a request; by default, long texts are truncated."""
    return {"truncate": True} | (body.parameters or HubParameters()).options()


# -- responses -----------------------------------------------------------------------------------------


def _label_scores(answers: TextAnswers, function: str | None = None) -> list[list[dict[str, Any]]]:
    """Return the labels of each row with their scores, the highest first; a regression has a single one."""
    if function is None:
        rows = np.array([list(answer.scores.values()) for answer in answers])
    else:
        rows = FUNCTIONS[function](torch.from_numpy(answers.logits)).numpy()
    order = np.argsort(-rows, axis=1, kind="stable")
    return [
        [{"label": answers.labels[index], "score": scores[index]} for index in indices]
        for scores, indices in zip(rows.tolist(), order.tolist(), strict=True)
    ]


def _hub_reply(answers: Any, body: HubRequest, request_info: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    parameters = body.parameters or HubParameters()
    rows = [row[: parameters.top_k] for row in _label_scores(answers, parameters.function_to_apply)]
    if parameters.details or body.details:
        for row, layer in zip(rows, answers.layer.tolist(), strict=True):
            row[0] |= {"exit_layer": layer, "outside_guarantee": request_info["outside"]}
    return rows


def _predict_reply(answers: Any, body: PredictRequest, request_info: Mapping[str, Any]) -> Any:
    rows = _label_scores(answers, "none" if body.raw_scores else None)
    return rows if _is_batch(body) else rows[0]


def _classify_reply(answers: Any, body: ClassifyRequest, request_info: Mapping[str, Any]) -> dict[str, Any]:
    data = []
    for index, row in enumerate(_label_scores(answers)):
        scores = {entry["label"]: entry["score"] for entry in row}
        probs = [scores[label] for label in answers.labels]
        data.append({"index": index, "label": row[0]["label"], "probs": probs, "num_classes": len(probs)})
    tokens = request_info["tokens"]
    return {
        "id": f"classify-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": request_info["model"],
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }


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
    *OPEN_INFERENCE_ROUTES,
)
