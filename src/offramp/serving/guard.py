"""Middleware: checks API key and body size before a request is parsed."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from dataclasses import dataclass

from fastapi import Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offramp.serving.engine import Engine
from offramp.serving.errors import error_response, queue_full_response
from offramp.serving.metrics import Metrics

__all__ = ["Guard", "ServerOptions"]

logger = logging.getLogger("offramp")

BODY_TIMEOUT = 30.0  # seconds between two chunks of a request body
OPEN_PATHS = ("/health", "/ready", "/metrics", "/v2/health/live", "/v2/health/ready")  # probes, no API key needed


@dataclass(frozen=True)
class ServerOptions:
    """The server's name, limits and access rules."""

    name: str = "model"
    max_rows: int = 512  # texts per request
    max_bytes: int = 2_000_000  # per request body
    api_key: str | None = None
    guard_all: bool = False  # /health, /ready and /metrics require the API key, too
    allow_override: bool = False  # requests may set a policy


class Guard:
    """Middleware that checks API key and body size; counts and logs every response, without its texts."""

    def __init__(self, app: ASGIApp, options: ServerOptions, metrics: Metrics, engine: Engine):
        self.app, self.options, self.metrics, self.engine = app, options, metrics, engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, received_bytes, is_complete = [0], [0], [False]

        async def receive_limited() -> Message:
            if is_complete[0]:  # only a disconnect can follow, at any time
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), BODY_TIMEOUT)
            except TimeoutError as err:
                raise HTTPException(408, "Timed out while reading the request body.") from err
            received_bytes[0] += len(message.get("body", b""))
            is_complete[0] = not message.get("more_body", False)
            if received_bytes[0] > self.options.max_bytes:
                raise HTTPException(413, f"The request body exceeds the maximum of {self.options.max_bytes:,} bytes.")
            return message

        async def send_recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        if scope["method"] == "POST":  # every body is JSON, even if the content type is missing or curl's default
            headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
            scope["headers"] = [*headers, (b"content-type", b"application/json")]
        rejection = self._rejection(Headers(scope=scope), scope["path"], scope["method"] == "POST")
        inner = self.app if rejection is None else rejection
        try:
            await inner(scope, receive_limited, send_recorded)
        except Exception as err:
            logger.error("A request failed: %s", type(err).__name__)  # without its message, which may contain a text
            if not status[0]:
                response = error_response(424, "backend", "The prediction failed; see the server log.")
                await response(scope, receive_limited, send_recorded)
        route = getattr(scope.get("route"), "path", "refused" if rejection is not None else "other")
        self.metrics.responses.labels(route, str(status[0])).inc()
        if scope["path"] not in OPEN_PATHS:
            logger.info("%s", json.dumps({"route": route, "status": status[0]}))

    def _rejection(self, headers: Headers, path: str, is_post: bool) -> Response | None:
        """Return the error response for a request that is not allowed, or None."""
        options = self.options
        is_open = path in OPEN_PATHS or (path == "/" and not is_post)  # the status page sends the key with its requests
        if options.api_key is not None and (options.guard_all or not is_open):
            scheme, _, key = headers.get("authorization", "").partition(" ")
            is_valid = hmac.compare_digest(key.strip().encode(), options.api_key.strip().encode())
            if scheme.lower() != "bearer" or not is_valid:
                return error_response(401, "unauthorized", "Missing or invalid API key.")
        if is_post and self.engine.is_full:  # before parsing and tokenizing
            return queue_full_response(self.engine.queue_full_error)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > options.max_bytes:
            message = f"The request body has {length[:20]} bytes; the maximum is {options.max_bytes:,}."
            return error_response(413, "too_large", message)
        return None
