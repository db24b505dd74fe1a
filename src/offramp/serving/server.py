"""Running the application with uvicorn: the socket, TLS, limits of connections, signals."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from offramp.errors import BadValue
from offramp.serving.connections import ConnectionLimits, connection_class, usable_connections
from offramp.serving.served import ServedModel

__all__ = ["LOOPBACK", "HttpOptions", "Server", "listen", "make_server", "run_server"]

logger = logging.getLogger("offramp")

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
KEEP_ALIVE_SECONDS = 75  # longer than the usual 60 s of load balancers, so that they close idle connections first


@dataclass(frozen=True)
class HttpOptions:
    """Options of the HTTP server."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    grace_seconds: int = 30  # to answer pending requests after SIGTERM
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        for name, value in (("max_connections", self.limits.connections), ("grace_seconds", self.grace_seconds)):
            if value < 1:
                raise BadValue(f"`{name}` must be at least 1, got {value}.")
        if self.tls_key is not None and self.tls_cert is None:
            raise BadValue("`tls_key` needs `tls_cert`.")
        for file in (self.tls_cert, self.tls_key):
            if file is not None and not file.is_file():
                raise BadValue(f"File not found: {file}.")
        if self.tls_cert is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key)
            except OSError as err:  # ssl.SSLError is one
                raise BadValue(f"Cannot use the TLS certificate {self.tls_cert} with its key: {err}.") from err


def listen(host: str, port: int) -> socket.socket:
    """Open the server's socket before the model is loaded, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server_socket = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # asyncio sets TCP_NODELAY on these only
    server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server_socket.bind((host, port))
        server_socket.listen(2048)
    except (OSError, UnicodeError) as err:
        server_socket.close()
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise BadValue(f"Cannot listen on {host}:{port}: {reason}. Use another `port=` or `host=`.") from err
    return server_socket


def run_server(app: FastAPI, served: ServedModel, server_socket: socket.socket, options: HttpOptions) -> None:
    """Serve until a signal stops the server; SIGHUP reloads the model."""
    server = make_server(app, options)
    with _reload_on_hangup(served):
        server.run(sockets=[server_socket])


def make_server(app: FastAPI, options: HttpOptions) -> Server:
    """Return the HTTP server of an application."""
    connections = usable_connections(options.limits.connections)
    if connections < options.limits.connections:
        logger.warning("The limit of open files allows %d connections (ulimit -n raises it).", connections)
    config = uvicorn.Config(
        app,
        http=connection_class(replace(options.limits, connections=connections)),
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=options.grace_seconds,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
    )
    return Server(config)


class Server(uvicorn.Server):
    """uvicorn's server; a second Ctrl-C ends it at once."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down gracefully; when forced, drop the requests that are pending."""
        await super().shutdown(sockets)
        if self.force_exit:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it logs the end of cancelled tasks
            for task in self.server_state.tasks:
                task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await asyncio.gather(*self.server_state.tasks, return_exceptions=True)


@contextmanager
def _reload_on_hangup(served: ServedModel) -> Iterator[None]:
    """Reload the model on SIGHUP, unless a terminal is attached: its end stops the server, as for every command."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "SIGHUP") or (sys.stdin is not None and sys.stdin.isatty()):
        yield
        return

    def reload(number: int, frame: object) -> None:
        threading.Thread(target=served.reload, name="reload", daemon=True).start()

    before = signal.signal(signal.SIGHUP, reload)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
