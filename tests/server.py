"""A real server in a separate process, for tests."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests import programs

INSECURE = ssl._create_unverified_context()  # for certificates that tests make themselves


@dataclass(frozen=True)
class Server:
    """A server's URL and process."""

    url: str
    process: Any

    def stop(self, signal_number: int = signal.SIGTERM, wait: float = 30) -> int:
        self.process.send_signal(signal_number)
        return int(self.process.wait(wait))


@contextmanager
def run_server(*arguments: Any, port: str = "0") -> Iterator[Server]:
    """Run `offramp serve …` on a free port; yield it when it is ready."""
    process = programs.Started(programs.offramp, ["serve", *arguments, "--port", port])
    try:
        line = process.stdout.readline()
        url = re.search(r"https?://\S+:\d+", line)
        assert url, line + process.stderr.read()
        server = Server(url[0], process)
        for _ in range(1200):
            try:
                if request(f"{server.url}/ready")[0] == 200:
                    break
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()


def request(url: str, content: bytes | None = None, headers: Any = None, method: str | None = None) -> Any:
    """Send a request; return status, headers and content."""
    sent = urllib.request.Request(url, content, headers or {}, method=method)
    try:
        with urllib.request.urlopen(sent, timeout=30, context=INSECURE) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as err:
        return err.code, err.headers, err.read()


def post(url: str, body: Any, headers: Any = None, raw: bytes | None = None) -> Any:
    """Send a body; return status, headers and the parsed response."""
    content = json.dumps(body).encode() if raw is None else raw
    status, reply_headers, reply = request(url, content, {"content-type": "application/json"} | (headers or {}))
    return status, reply_headers, json.loads(reply)


def get(url: str, headers: Any = None) -> tuple[int, str]:
    """Return status and text of a page."""
    status, _, content = request(url, None, headers)
    return status, content.decode()


@contextmanager
def serve_in_thread(engine: Any, options: Any, http: Any) -> Iterator[Any]:
    """Serve an engine in a thread of this process, with any limits; yield the URL and the server."""
    import threading

    from offramp.serving.app import make_app
    from offramp.serving.metrics import Metrics
    from offramp.serving.served import ServedModel
    from offramp.serving.server import listen, make_server

    server_socket = listen("127.0.0.1", 0)
    server = make_server(make_app(ServedModel(engine), options, Metrics()), http)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [server_socket]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        scheme = "http" if http.tls_cert is None else "https"
        url = f"{scheme}://127.0.0.1:{server_socket.getsockname()[1]}"
        while get(f"{url}/ready")[0] != 200:
            time.sleep(0.01)
        yield url, server
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server does not stop"


async def post_asgi(app: Any, *bodies: Any, path: str = "/") -> tuple[int, str]:
    """Send a POST request to the ASGI app in this process; without bodies, the request never completes."""
    messages = [{"type": "http.request", "body": json.dumps(body).encode()} for body in bodies]
    sent: list[Any] = []

    async def receive() -> Any:
        if not messages:
            await asyncio.sleep(60)
        return messages.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()
