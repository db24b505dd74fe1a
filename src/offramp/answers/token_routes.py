"""The server route for token classification, in the format of Hugging Face's API and of transformers' pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, StrictStr

from offramp.answers.answer import Endpoint
from offramp.answers.request import NonEmpty, Parameters, RequestBody, RequestText
from offramp.errors import BadInput

__all__ = ["ROUTES"]


class TokenParameters(Parameters):
    """Options of a request, with those of transformers pipelines."""

    aggregation_strategy: StrictStr | None = None
    ignore_labels: list[StrictStr] | None = Field(default=None, max_length=10_000)


class TokenRequest(RequestBody):
    """`POST /`: `{"inputs": "x"}` or `{"inputs": ["x", "y"]}`."""

    inputs: RequestText | NonEmpty[RequestText]
    parameters: TokenParameters | None = None


def _texts(body: TokenRequest) -> list[str]:
    return [body.inputs] if isinstance(body.inputs, str) else list(body.inputs)


def _parameters(body: TokenRequest) -> dict[str, Any]:
    return {"truncate": True} | (body.parameters or TokenParameters()).options()


def _reply(answers: Any, body: TokenRequest, request_info: Mapping[str, Any]) -> Any:
    """Return the entities of a text, or a list of them for a list of texts."""
    parameters = body.parameters or TokenParameters()
    strategy, key = parameters.aggregation_strategy, answers.key
    if strategy is not None and strategy.lower() != answers.aggregation:
        raise BadInput(
            f"This model joins tokens with the aggregation strategy {answers.aggregation!r}, got {strategy!r:.40}; "
            "remove `aggregation_strategy`."
        )
    ignored = set(parameters.ignore_labels or ())
    rows = []
    for answer in answers:
        row = [entity for entity in answer.entities if entity[key] not in ignored]
        if parameters.details:
            row = [entity | {"exit_layer": answer.exit_layer} for entity in row]
        rows.append(row)
    return rows[0] if isinstance(body.inputs, str) else rows


ROUTES = (
    Endpoint(
        "/", "Find entities (Hugging Face token classification)", TokenRequest, list[Any], _texts, _parameters, _reply
    ),
)
