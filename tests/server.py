"""A real server in a process of its own, for tests."""

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
class Served:
    """Where it listens, and its process."""

    url: str
    process: Any

    def end(self, kind: int = signal.SIGTERM, wait: float = 30) -> int:
        self.process.send_signal(kind)
        return int(self.process.wait(wait))


@contextmanager
def served(*arguments: Any, port: str = "0") -> Iterator[Served]:
    """`offramp serve …` on a free port, ready."""
    command = [sys.executable, "-m", "offramp", "serve", *map(str, arguments), "--port", port]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+:\d+", line)
        assert found, line + process.stderr.read()
        one = Served(found[0], process)
        for _ in range(1200):
            try:
                if urllib.request.urlopen(f"{one.url}/ready", timeout=5).status == 200:
                    break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        yield one
    finally:
        process.kill()
        process.wait()


async def asked(app: Any, *bodies: Any, path: str = "/") -> tuple[int, str]:
    """A request without a wire; where no body comes, none ever does."""
    parts = [{"type": "http.request", "body": json.dumps(body).encode()} for body in bodies]
    sent: list[Any] = []

    async def receive() -> Any:
        if not parts:
            await asyncio.sleep(60)
        return parts.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()
