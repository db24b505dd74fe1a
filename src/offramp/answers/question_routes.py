"""The server route for questions about a context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offramp.answers.answer import Endpoint
from offramp.answers.request import Parameters, RequestBody, RequestText, TooLarge

__all__ = ["ROUTES"]

MAX_CHARS = 100_000  # of a question and its context


class AnswerRequest(RequestBody):
    """`POST /answer`."""

    question: RequestText
    context: RequestText
    parameters: Parameters | None = None


def _examples(body: AnswerRequest) -> list[tuple[str, str]]:
    if len(body.question) + len(body.context) > MAX_CHARS:
        raise TooLarge(f"The question and its context have more than {MAX_CHARS:,} characters.")
    return [(body.question, body.context)]


def _parameters(body: AnswerRequest) -> dict[str, Any]:
    return {"truncate": True} | (body.parameters or Parameters()).options()


def _reply(answers: Any, body: AnswerRequest, request_info: Mapping[str, Any]) -> dict[str, Any]:
    (answer,) = answers
    return {**answer.to_dict(), "score": answer.score}


ROUTES = (
    Endpoint(
        "/answer", "Answer a question from its context", AnswerRequest, dict[str, Any], _examples, _parameters, _reply
    ),
)
