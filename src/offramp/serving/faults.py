"""Errors as replies: every one is `{"error", "error_type"}`, none shows a stack."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from offramp.answers.request import TooLarge
from offramp.errors import OfframpError
from offramp.serving.requests import Full, Stopped, TooLong

__all__ = ["Fault", "Problem", "add_errors", "fault", "overloaded"]

logger = logging.getLogger("offramp")


class Problem(Exception):
    """A reply that is an error."""

    def __init__(self, status: int, kind: str, message: str, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers


class Fault(BaseModel):
    """How every error looks."""

    error: str
    error_type: str


def fault(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error as a reply."""
    return JSONResponse({"error": message, "error_type": kind}, status, headers)


def overloaded(err: Full) -> JSONResponse:
    """There is no room, and when there may be."""
    return fault(429, "overloaded", str(err), {"retry-after": str(int(err.seconds) + 1)})


def add_errors(app: FastAPI) -> None:
    """What becomes of what the routes raise."""

    @app.exception_handler(Problem)
    async def ours(_: Request, err: Problem) -> JSONResponse:
        return fault(err.status, err.kind, str(err), err.headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, err: RequestValidationError) -> JSONResponse:
        first = err.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return fault(400, "validation", f"{where}: {first['msg']}"[:300])

    @app.exception_handler(HTTPException)
    async def plain(_: Request, err: HTTPException) -> JSONResponse:
        kind = {408: "slow", 413: "too_large", 400: "validation"}.get(err.status_code, "http")
        return fault(err.status_code, kind, str(err.detail), dict(err.headers or {}))

    @app.exception_handler(Full)
    async def full(_: Request, err: Full) -> JSONResponse:
        return overloaded(err)

    @app.exception_handler(Stopped)
    async def stopped(_: Request, err: Stopped) -> JSONResponse:
        return fault(503, "unavailable", str(err), {"retry-after": "1"})

    @app.exception_handler(TooLong)
    async def too_long(_: Request, err: TooLong) -> JSONResponse:
        return fault(422, "too_long", str(err))

    @app.exception_handler(TooLarge)
    async def too_large(_: Request, err: TooLarge) -> JSONResponse:
        return fault(413, "too_large", str(err))

    @app.exception_handler(OfframpError)
    async def mistaken(_: Request, err: OfframpError) -> JSONResponse:
        return fault(400, "validation", str(err))
