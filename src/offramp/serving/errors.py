"""Errors as HTTP responses: always `{"error", "error_type"}`, never a stack trace."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from offramp.answers.request import TooLarge
from offramp.errors import OfframpError
from offramp.serving.requests import QueueFull, TextTooLong, Unavailable

__all__ = ["ErrorBody", "HttpError", "add_error_handlers", "error_response", "queue_full_response"]


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


def queue_full_response(err: QueueFull) -> JSONResponse:
    """Return the 429 response, with `retry-after`."""
    return error_response(429, "overloaded", str(err), {"retry-after": str(int(err.seconds) + 1)})


def add_error_handlers(app: FastAPI) -> None:
    """Register a handler for every exception that the routes raise."""

    @app.exception_handler(HttpError)
    async def http_error(_: Request, err: HttpError) -> JSONResponse:
        return error_response(err.status, err.error_type, str(err), err.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(_: Request, err: RequestValidationError) -> JSONResponse:
        first = err.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        return error_response(400, "validation", f"{field}: {first['msg']}"[:300])

    @app.exception_handler(HTTPException)
    async def http_exception(_: Request, err: HTTPException) -> JSONResponse:
        error_type = {408: "slow", 413: "too_large", 400: "validation"}.get(err.status_code, "http")
        return error_response(err.status_code, error_type, str(err.detail), dict(err.headers or {}))

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
