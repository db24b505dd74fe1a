"""What the server allows: key and size of every request, before anything is parsed."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from dataclasses import dataclass

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offramp.serving.engine import Engine
from offramp.serving.faults import fault, overloaded
from offramp.serving.metrics import Metrics

__all__ = ["Guard", "ServerOptions"]

logger = logging.getLogger("offramp")

SLOWEST = 30.0  # seconds that a client may take between two parts of its body
OPEN = ("/health", "/ready", "/metrics", "/v2/health/live", "/v2/health/ready")  # what probes ask, without a key


@dataclass(frozen=True)
class ServerOptions:
    """What the server allows."""

    name: str = "model"
    max_rows: int = 512  # texts of a request
    max_bytes: int = 2_000_000  # of a body
    api_key: str | None = None
    guard_all: bool = False  # /health, /ready and /metrics ask for the key, too
    allow_override: bool = False  # a request may name a policy


class Guard:
    """Key and size of every request, before anything is parsed; what became of it, counted and logged without texts."""

    def __init__(self, app: ASGIApp, options: ServerOptions, metrics: Metrics, engine: Engine):
        self.app, self.options, self.metrics, self.engine = app, options, metrics, engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, seen, whole = [0], [0], [False]

        async def limited() -> Message:
            if whole[0]:  # nothing comes but the client's end, and that may take as long as it likes
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), SLOWEST)
            except TimeoutError as err:
                raise HTTPException(408, "The body did not come in time.") from err
            seen[0] += len(message.get("body", b""))
            whole[0] = not message.get("more_body", False)
            if seen[0] > self.options.max_bytes:
                raise HTTPException(413, f"The body has more than {self.options.max_bytes:,} bytes.")
            return message

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        if scope["method"] == "POST":  # every body is JSON, whatever a client forgot to say, or curl says by itself
            others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
            scope["headers"] = [*others, (b"content-type", b"application/json")]
        refused = self._refused(Headers(scope=scope), scope["path"], scope["method"] == "POST")
        inner = self.app if refused is None else refused
        try:
            await inner(scope, limited, noted)
        except Exception as err:
            logger.error("A request failed: %s", type(err).__name__)  # its message may hold a text
            if not status[0]:
                await fault(424, "backend", "The model could not answer; the server's log tells more.")(
                    scope, limited, noted
                )
        route = getattr(scope.get("route"), "path", "refused" if refused is not None else "other")
        self.metrics.replies.labels(route, str(status[0])).inc()
        if scope["path"] not in OPEN:
            logger.info("%s", json.dumps({"route": route, "status": status[0]}))

    def _refused(self, headers: Headers, path: str, is_post: bool) -> Response | None:
        options = self.options
        is_open = path in OPEN or (path == "/" and not is_post)  # the page holds nothing, it asks with its own key
        if options.api_key is not None and (options.guard_all or not is_open):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            is_right = hmac.compare_digest(given.strip().encode(), options.api_key.strip().encode())
            if scheme.lower() != "bearer" or not is_right:
                return JSONResponse({"error": "A key is needed, or another one.", "error_type": "unauthorized"}, 401)
        if is_post and self.engine.is_full:  # before anybody has parsed or tokenised anything
            return overloaded(self.engine.refusal)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > options.max_bytes:
            message = f"The body has {length[:20]} bytes; the most is {options.max_bytes:,}."
            return JSONResponse({"error": message, "error_type": "too_large"}, 413)
        return None
