"""A real server in a separate process, for tests."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


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
    command = [sys.executable, "-m", "offramp", "serve", *map(str, arguments), "--port", port]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    try:
        line = process.stdout.readline()
        url = re.search(r"http://\S+:\d+", line)
        assert url, line + process.stderr.read()
        server = Server(url[0], process)
        for _ in range(1200):
            try:
                if urllib.request.urlopen(f"{server.url}/ready", timeout=5).status == 200:
                    break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()


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
