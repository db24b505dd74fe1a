"""Connections with limits: time for headers and bodies, size of headers, and how many there may be.

uvicorn waits forever for the rest of a request. When the maximum number of connections is reached, a new one replaces
the one that has kept the server waiting the longest; if all are being answered, it is answered with 503, except for
health checks. So neither silent nor slow clients can make the server unreachable.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["OVERFLOW", "BoundedConnection", "ConnectionLimits", "connection_class", "usable_connections"]

HEADER_BYTES = 65_536
TRAILER_BYTES = 8_192  # headers after a chunked body; they are ignored
OVERHEAD = 4  # bytes on the wire per byte of a body: small chunks need more
MAX_PIPELINED = 16  # requests that a client may send before the first is answered
UPGRADE = re.compile(rb"(?i)(\r\n)upgrade(?=\s*:)")  # a request for HTTP/2, whose body the parser would not read
EXTRA_SECONDS = 2.0  # on top of the body's time, in which the application answers 408 itself
RESERVED = 32  # connections beyond the maximum, answered with 503 or for health checks
OVERFLOW = "offramp.overflow"  # in the state of a request that is beyond the maximum
OTHER_FILES = 32  # file descriptors that are kept for other purposes
MIN_CONNECTIONS = 8


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections there may be, and how long they may wait for the client."""

    connections: int = 1024
    header_seconds: float = 10.0  # for the headers of a request, from the connection or its first byte
    body_seconds: float = 30.0
    body_bytes: int = 2_000_000
    write_seconds: float = 30.0  # without progress, while the client reads a response
    closing_seconds: float = 5.0  # for requests that are incomplete when the server shuts down


def usable_connections(maximum: int) -> int:
    """Return how many connections the limit of open files allows, at most `maximum`."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 64  # noqa: PTH208
    except (ImportError, OSError):  # no such limit on this system
        return maximum
    if limit == resource.RLIM_INFINITY:
        return maximum
    return min(maximum, max(MIN_CONNECTIONS, limit - used - OTHER_FILES - RESERVED))


def connection_class(limits: ConnectionLimits) -> type[HttpToolsProtocol]:
    """Return the protocol class for uvicorn, with these limits."""
    return type("LimitedConnection", (BoundedConnection,), {"limits": limits})


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's HTTP connection with limits."""

    limits: ClassVar[ConnectionLimits]

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.waiting_since: float | None = None  # for the client; None while the server answers
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes: int | None = 0  # of the current request; None: its headers are complete
        self._bytes = self._trailer_bytes = 0  # of the current request
        self._write_timer: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes in the write buffer when the timer was started
        self._is_extra = False

    # -- events of the connection ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or make room for it."""
        super().connection_made(transport)
        self._wait(self.limits.header_seconds)
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data; a request that is too large is rejected."""
        if self._header_bytes is not None:
            self._header_bytes += len(data)
            head, separator, rest = data.partition(b"\r\n\r\n")
            data = UPGRADE.sub(rb"\1ignored", head) + separator + rest  # a name of the same length
        self._bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._header_bytes is not None and self._header_bytes > HEADER_BYTES:
            self._reject("431 Request Header Fields Too Large", "too_large", "The request headers are too large.")
        elif self._bytes > HEADER_BYTES + OVERHEAD * (self.limits.body_bytes + HEADER_BYTES):
            self._reject("413 Content Too Large", "too_large", "The request is too large.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after a chunked body are ignored."""
        if self._header_bytes is not None:
            super().on_header(name, value)
            return
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > TRAILER_BYTES:
            raise ValueError("The trailer of the request is too large.")  # ends the parser

    def send_400_response(self, msg: str) -> None:
        """Reject a request that the parser does not accept."""
        self._reject("400 Bad Request", "http", "Invalid HTTP request.")

    def on_message_begin(self) -> None:
        """Start the time of the headers."""
        super().on_message_begin()
        self._bytes = self._trailer_bytes = 0
        self._wait(self.limits.header_seconds)
        if self._is_extra:
            self.scope["state"][OVERFLOW] = True

    def on_headers_complete(self) -> None:
        """Start the time of the body."""
        self._header_bytes = None
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("Too many pipelined requests.")  # ends the parser
        super().on_headers_complete()
        self._wait(self.limits.body_seconds + EXTRA_SECONDS)

    def on_message_complete(self) -> None:
        """End the time of the body."""
        self._header_bytes = 0
        self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request; uvicorn limits this time itself."""
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()
        elif self._timer is None:
            self.waiting_since = self.loop.time()
        self._watch_writing()

    def pause_writing(self) -> None:
        """Limit the time in which the client reads."""
        super().pause_writing()
        self._watch_writing()

    def shutdown(self) -> None:
        """Close idle connections; requests that are still arriving get a short time to complete."""
        super().shutdown()
        if self._timer is not None:
            self._wait(self.limits.closing_seconds)

    # -- limits ----------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.waiting_since is None:
            self.waiting_since = self.loop.time()
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.waiting_since = None

    def _give_up(self) -> None:
        self._timer = None
        if self.pipeline:  # earlier requests are still being answered
            self._wait(self.limits.body_seconds)
        elif not self.transport.is_closing():
            self._reject("408 Request Timeout", "slow", "Timed out while reading the request.")

    def _watch_writing(self) -> None:
        """Abort the connection if the client stops reading what was sent."""
        self._unsent = self.transport.get_write_buffer_size()
        if self._write_timer is None and self._unsent:
            self._write_timer = self.loop.call_later(self.limits.write_seconds, self._check_writing)

    def _check_writing(self) -> None:
        self._write_timer, before = None, self._unsent
        if self.transport.get_write_buffer_size() >= before > 0:
            self.transport.abort()
        else:
            self._watch_writing()

    def _make_room(self) -> None:
        others = [
            connection
            for connection in self.connections
            if connection is not self and isinstance(connection, BoundedConnection)
        ]
        # connections that are closing have data which their clients do not read
        waiting = [
            (-1.0 if connection.transport.is_closing() else connection.waiting_since or 0.0, id(connection), connection)
            for connection in others
            if connection.transport.is_closing() or (connection.waiting_since is not None and not connection.pipeline)
        ]
        if waiting:
            min(waiting)[2].transport.abort()
        elif len(self.connections) > self.limits.connections + RESERVED:
            self.transport.abort()
        # the room of a connection that was extra itself, or was closing, is not for a request
        taken = [other for other in others if not (other._is_extra or other.transport.is_closing())]
        self._is_extra = len(taken) >= self.limits.connections

    def _reject(self, status: str, error_type: str, message: str) -> None:
        """Send an error and close; if a response has begun, only close."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = f'{{"error":"{message}","error_type":"{error_type}"}}'.encode()
            head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()
        self._watch_writing()
