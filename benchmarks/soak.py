"""Send many requests to a server and watch its memory, open files and threads.

    python benchmarks/soak.py MODEL TEXTS [--requests 100000] [--clients 16]

Most requests are single texts on connections that are kept open; one in a hundred is a batch of 32, an invalid body, a
client that disconnects without reading the response, or a new connection. Every response is checked: 200 with the label
of the first response to the same text, 400 for invalid bodies, 429 when the queue is full. Runs on this machine only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from offramp.core.machine import cpu_name

RESULTS = Path(__file__).parent / "results" / "soak.json"
SAMPLES = 20
HEADERS = {"content-type": "application/json"}


@dataclass
class Soak:
    """The requests, their results, and the samples of the server's process."""

    host: str
    port: int
    pid: int
    texts: list[str]
    total: int
    sent: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    labels: dict[str, str] = field(default_factory=dict)
    wrong: int = 0
    samples: list[dict[str, float]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_number(self) -> int | None:
        """Return the number of the next request, or None at the end; sample the process from time to time."""
        with self.lock:
            if self.sent >= self.total:
                return None
            if self.sent % max(1, self.total // SAMPLES) == 0:
                self.samples.append(self.sample())
            self.sent += 1
            return self.sent

    def sample(self) -> dict[str, float]:
        """Return memory in MB, open files and threads."""
        root = Path(f"/proc/{self.pid}")
        memory = int((root / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        files, threads = len(list((root / "fd").iterdir())), len(list((root / "task").iterdir()))
        return {"requests": self.sent, "memory_mb": round(memory, 1), "files": files, "threads": threads}

    def client(self, seed: int) -> None:
        """Send requests until the total is reached."""
        generator = random.Random(seed)
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        while self.next_number() is not None:
            kind = generator.choices(("text", "batch", "invalid", "gone", "new"), (96, 1, 1, 1, 1))[0]
            if kind == "new":
                connection.close()
            if kind == "gone":
                self.hang_up(generator.choice(self.texts))
                continue
            texts = generator.choices(self.texts, k=32 if kind == "batch" else 1)
            body = b'{"inputs": [1, 2]}' if kind == "invalid" else json.dumps({"inputs": texts}).encode()
            try:
                connection.request("POST", "/", body, HEADERS)
                reply = connection.getresponse()
                content = reply.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                self.count("broken")
                continue
            self.count(f"{kind} {reply.status}" if kind == "invalid" else str(reply.status))
            if reply.status == 200:
                self.check(texts, json.loads(content))

    def hang_up(self, text: str) -> None:
        """Send a request and close the connection without reading the response."""
        body = json.dumps({"inputs": text}).encode()
        with socket.create_connection((self.host, self.port), timeout=60) as connection:
            head = f"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
        self.count("hung up")

    def count(self, status: str) -> None:
        """Count a result."""
        with self.lock:
            self.statuses[status] += 1

    def check(self, texts: list[str], reply: list[list[dict[str, Any]]]) -> None:
        """Compare the labels with those of the first responses."""
        with self.lock:
            for text, row in zip(texts, reply, strict=True):
                if self.labels.setdefault(text, row[0]["label"]) != row[0]["label"]:
                    self.wrong += 1


def main() -> None:
    """Run the soak and save the samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--audit", type=float, default=0.0)
    args = parser.parse_args()
    texts = [line for line in args.texts.read_text().splitlines() if line.strip()]
    command = [sys.executable, "-m", "offramp", "serve", args.model, "--port", "0", "--audit", str(args.audit)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        match = re.search(r"http://(\S+):(\d+)", server.stdout.readline() if server.stdout else "")
        assert match is not None, "the server did not start"
        wait = ["curl", "--silent", "--fail", "--retry", "60", "--retry-all-errors", "--retry-delay", "1"]
        subprocess.run([*wait, f"{match[0]}/ready"], check=True, stdout=subprocess.DEVNULL)
        soak = Soak(match[1], int(match[2]), server.pid, texts, args.requests)
        start = time.monotonic()
        clients = [threading.Thread(target=soak.client, args=(seed,)) for seed in range(args.clients)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        seconds = time.monotonic() - start
        time.sleep(2)
        soak.samples.append(soak.sample())
        server.send_signal(signal.SIGTERM)
        _, log = server.communicate(timeout=60)
    finally:
        server.kill()
    results = {
        "date": f"{date.today()}",
        "cpu": cpu_name(),
        "model": Path(args.model).resolve().name,
        "requests": args.requests,
        "seconds": round(seconds, 1),
        "statuses": dict(soak.statuses),
        "different_labels": soak.wrong,
        "samples": soak.samples,
        "end": log.strip().splitlines()[0],
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
