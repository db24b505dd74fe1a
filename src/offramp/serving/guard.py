"""Middleware: who may send a request, before its body is read; ids, counts and a log line for every response."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offramp.serving.api_keys import ApiKeys
from offramp.serving.body import BodyLimits
from offramp.serving.connections import OVERFLOW
from offramp.serving.errors import error_response, queue_full_response
from offramp.serving.metrics import Metrics
from offramp.serving.request_log import REQUEST_ID_HEADER, RequestRecord
from offramp.serving.served import ServedModel

if TYPE_CHECKING:
    from offramp.serving.tracing import RequestTracer

__all__ = ["Guard", "ServerOptions"]

logger = logging.getLogger("offramp")

PROBES = ("/health", "/ready", "/metrics", "/v2/health/live", "/v2/health/ready")  # no API key needed
PAGES = ("/", "/docs")  # they contain no data, and send the key with their own requests
JSON_TYPES = ("", "application/json", "application/octet-stream")  # octet-stream: binary tensors
CURL_TYPE = "application/x-www-form-urlencoded"  # what curl sends by default


@dataclass(frozen=True)
class ServerOptions:
    """The server's name, limits and access rules."""

    name: str = "model"
    limits: BodyLimits = field(default_factory=BodyLimits)
    keys: ApiKeys | None = None
    guard_all: bool = False  # /health, /ready and /metrics require the API key, too
    allow_override: bool = False  # requests may set a policy
    allowed_hosts: frozenset[str] | None = None  # host names in URLs of this server; None: any
    cors_origins: tuple[str, ...] = ()  # origins whose pages may send requests
    log_requests: bool = False
    tracer: RequestTracer | None = None


class Guard:
    """Middleware that rejects requests which are not allowed; counts and logs every response, without its texts."""

    def __init__(self, app: ASGIApp, options: ServerOptions, metrics: Metrics, served: ServedModel):
        self.app, self.options, self.metrics, self.served = app, options, metrics, served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, status = Headers(scope=scope), [0]
        record = scope.setdefault("state", {})["record"] = RequestRecord.of(headers)
        method, is_reported, tracer = scope["method"], scope["path"] not in PROBES, self.options.tracer
        span = tracer.start(method, headers, record) if tracer is not None and is_reported else None

        async def send_recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = record.request_id
            await send(message)

        rejection = self._rejection(headers, scope)
        try:
            await (self.app if rejection is None else rejection)(scope, receive, send_recorded)
        except asyncio.CancelledError:
            if not status[0]:  # the server stops, and the time for pending requests is over
                await error_response(503, "unavailable", "The server is shutting down.")(scope, receive, send_recorded)
        except Exception as err:
            logger.error("A request failed: %s", type(err).__name__)  # without its message, which may contain a text
            if not status[0]:
                response = error_response(424, "backend", "The prediction failed; see the server log.")
                await response(scope, receive, send_recorded)
        route = getattr(scope.get("route"), "path", "refused" if rejection is not None else "other")
        self.metrics.responses.labels(route, str(status[0])).inc()
        if self.options.log_requests and is_reported:
            logger.info("%s", record.to_json(method, route, status[0]))
        if tracer is not None and span is not None:
            tracer.end(span, method, route if "route" in scope else None, status[0], record)

    def _rejection(self, headers: Headers, scope: Scope) -> Response | None:
        """Return the error response for a request that is not allowed, or None."""
        path, is_post = scope["path"], scope["method"] == "POST"
        is_probe = path in PROBES and not self.options.guard_all
        if not is_probe and scope["state"].get(OVERFLOW):
            message = "The server has too many connections; retry later."
            return error_response(503, "overloaded", message, {"retry-after": "1", "connection": "close"})
        if path not in PROBES and (reason := self._wrong_host(headers)) is not None:
            return error_response(421, "wrong_host", reason)
        if not is_probe and (is_post or path not in PAGES) and not self._has_key(headers):
            return error_response(401, "unauthorized", "Missing or invalid API key.", {"www-authenticate": "Bearer"})
        return self._post_rejection(headers) if is_post else None

    def _post_rejection(self, headers: Headers) -> Response | None:
        """Return the error response for a body that is not allowed, before it is read."""
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed(origin, headers.get("host", "")):
            message = f"Requests from pages of {origin!r:.100} are not allowed; allow them with --cors-origin."
            return error_response(403, "forbidden", message)
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = content_type in JSON_TYPES or content_type.endswith("+json")
        if not is_json and (content_type != CURL_TYPE or origin is not None):
            return error_response(415, "content_type", "Send the body with the header content-type: application/json.")
        if headers.get("content-encoding", "identity").lower() != "identity":
            return error_response(415, "content_type", "Compressed request bodies are not supported.")
        if self.served.engine.is_full:  # before parsing and tokenizing
            return queue_full_response(self.served.engine.queue_full_error)
        length = headers.get("content-length", "")
        if length.isdigit() and (len(length) > 18 or int(length) > self.options.limits.bytes):
            message = f"The request body has {length[:20]} bytes; the maximum is {self.options.limits.bytes:,}."
            return error_response(413, "too_large", message)
        return None

    def _has_key(self, headers: Headers) -> bool:
        if self.options.keys is None:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.options.keys.accepts(key.strip())

    def _wrong_host(self, headers: Headers) -> str | None:
        """Return a message if the URL's host is not this server's: a page may have pointed its own name here."""
        allowed = self.options.allowed_hosts
        host = _host_name(headers.get("host", ""))
        if allowed is None or host in allowed:
            return None
        return f"Unknown host {host!r:.100}; allow it with --allowed-host."

    def _is_allowed(self, origin: str, host: str) -> bool:
        origins = self.options.cors_origins
        return "*" in origins or origin in origins or urlsplit(origin).netloc.lower() == host.lower()


def _host_name(host: str) -> str:
    """Return a Host header without its port."""
    return host[: host.find("]") + 1].lower() if host.startswith("[") else host.partition(":")[0].lower()
