"""Errors as HTTP responses: always `{"error", "error_type"}`, never a stack trace."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from offramp.answers.request import TooLarge
from offramp.errors import OfframpError
from offramp.serving.requests import QueueFull, TextTooLong, Unavailable

__all__ = ["ErrorBody", "HttpError", "add_error_handlers", "describe_invalid", "error_response", "queue_full_response"]


TYPES = {  # pydantic's errors about types
    "string_type": "a text",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
    "list_type": "a list",
}
FIELD = re.compile(r"[a-z][a-z_]*")


class HttpError(Exception):
    """An error that is returned to the client with this status and type."""

    def __init__(self, status: int, error_type: str, message: str, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.error_type, self.headers = status, error_type, headers


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: str
    error_type: str


def error_response(status: int, error_type: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error as a JSON response."""
    return JSONResponse({"error": message, "error_type": error_type}, status, headers)


def describe_invalid(errors: Sequence[Any]) -> str:
    """Return one sentence for the errors of a body; a value of several possible types has one error per type."""
    error = max(errors, key=lambda entry: (entry["type"] not in TYPES, len(entry["loc"])))
    path = _path(error["loc"])
    if error["type"] in TYPES:
        expected = dict.fromkeys(TYPES[entry["type"]] for entry in errors if _path(entry["loc"]) == path)
        return f"{path} must be {' or '.join(expected)}, got {_shorten(error['input'])}."
    if error["type"] == "missing":
        return f"{path} is missing."
    if error["type"] == "too_short":
        return f"{path} is empty; send at least one text."
    return f"{path}: {error['msg']}, got {_shorten(error.get('input'))}."[:300]


def _path(location: Sequence[Any]) -> str:
    """Return a field such as inputs[1].text; pydantic's names of types are left out."""
    fields = [part for part in location if isinstance(part, int) or FIELD.fullmatch(part)]
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fields if part != "body")
    return text.removeprefix(".") or "The body"


def _shorten(value: Any) -> str:
    """Return a short form of a value; lists and objects may be deeper than Python can format."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value[:60] if isinstance(value, str) else value, ensure_ascii=False, default=repr)
    text = text.encode("utf-8", "replace").decode("utf-8")  # unpaired surrogates
    return text if len(text) <= 60 else f"{text[:57]}..."


def queue_full_response(err: QueueFull) -> JSONResponse:
    """Return the 429 response, with `retry-after`."""
    return error_response(429, "overloaded", str(err), {"retry-after": str(int(err.seconds) + 1)})


def add_error_handlers(app: FastAPI) -> None:
    """Register a handler for every exception that the routes raise."""

    @app.exception_handler(HttpError)
    async def http_error(_: Request, err: HttpError) -> JSONResponse:
        return error_response(err.status, err.error_type, str(err), err.headers)

    @app.exception_handler(HTTPException)
    async def http_exception(_: Request, err: HTTPException) -> JSONResponse:
        return error_response(err.status_code, "http", str(err.detail), dict(err.headers or {}))

    @app.exception_handler(QueueFull)
    async def queue_full(_: Request, err: QueueFull) -> JSONResponse:
        return queue_full_response(err)

    @app.exception_handler(Unavailable)
    async def unavailable(_: Request, err: Unavailable) -> JSONResponse:
        return error_response(503, "unavailable", str(err), {"retry-after": "1"})

    @app.exception_handler(TextTooLong)
    async def text_too_long(_: Request, err: TextTooLong) -> JSONResponse:
        return error_response(422, "too_long", str(err))

    @app.exception_handler(TooLarge)
    async def too_large(_: Request, err: TooLarge) -> JSONResponse:
        return error_response(413, "too_large", str(err))

    @app.exception_handler(OfframpError)
    async def invalid_value(_: Request, err: OfframpError) -> JSONResponse:
        return error_response(400, "validation", str(err))
