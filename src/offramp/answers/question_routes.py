"""The server's route for questions about a context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offramp.answers.answer import Endpoint
from offramp.answers.request import Body, Parameters, TooLarge, Words

__all__ = ["ROUTES"]

LONGEST = 100_000  # characters of a question and its context


class Question(Body):
    """`POST /answer`."""

    question: Words
    context: Words
    parameters: Parameters | None = None


def _examples(body: Question) -> list[tuple[str, str]]:
    if len(body.question) + len(body.context) > LONGEST:
        raise TooLarge(f"The question and its context have more than {LONGEST:,} characters.")
    return [(body.question, body.context)]


def _given(body: Question) -> dict[str, Any]:
    asked = body.parameters or Parameters()
    return {"truncate": True} | asked.model_dump(exclude_none=True, exclude={"top_k", "details"})


def _reply(answers: Any, body: Question, about: Mapping[str, Any]) -> dict[str, Any]:
    (answer,) = answers
    return {**answer.to_dict(), "score": answer.score}


ROUTES = (
    Endpoint("/answer", "the answer to a question in its context", Question, dict[str, Any], _examples, _given, _reply),
)
