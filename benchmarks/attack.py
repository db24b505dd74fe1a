"""Send a server what a hostile or broken client could send, and measure how it holds.

    python benchmarks/attack.py MODEL [--source OTHER_CLONE] [--only NAME] [--record before|after]

For each request body within the limits: status, seconds until the response, the slowest of the `/health` requests that
another process sends meanwhile, and the memory above that before the request. Then connections that are silent, half
sent or slow, a low limit of open files, and SIGTERM with a slow body. Everything runs on this machine, with a bound on
time. `--source` measures the server of another clone; `--record` saves the result, for the page `serve.md`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from offramp.core.machine import cpu_name

RESULTS = Path(__file__).parent / "results" / "attack"
SIZE = 1_980_000  # bytes of a body, within the limit of 2 MB
WAIT = 60.0  # seconds until a response, or the end of a connection, is no longer waited for


def numbers(count: int) -> bytes:
    """Return a JSON list of ones."""
    return b"[" + b",".join([b"1"] * count) + b"]"


def strings(count: int, text: bytes = b'""') -> bytes:
    """Return a JSON list of strings."""
    return b"[" + b",".join([text] * count) + b"]"


INFER = b'{"inputs":[{"name":"text","shape":%s,"datatype":"BYTES","data":%s}]}'
BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "numbers, POST /": ("/", lambda: b'{"inputs":' + numbers(SIZE // 2) + b"}"),
    "200 KB of numbers, POST /": ("/", lambda: b'{"inputs":' + numbers(100_000) + b"}"),
    "strings, POST /": ("/", lambda: b'{"inputs":' + strings(SIZE // 3) + b"}"),
    "objects, POST /": ("/", lambda: b'{"inputs":' + strings(SIZE // 3, b"{}") + b"}"),
    "strings, /predict": ("/predict", lambda: b'{"inputs":' + strings(SIZE // 3) + b"}"),
    "numbers, /classify": ("/classify", lambda: b'{"input":' + numbers(SIZE // 2) + b"}"),
    "strings, /classify": ("/classify", lambda: b'{"input":' + strings(SIZE // 3) + b"}"),
    "shape, infer": ("/v2/models/NAME/infer", lambda: INFER % (numbers(SIZE // 2), b'["a"]')),
    "huge integers in shape, infer": (
        "/v2/models/NAME/infer",
        lambda: INFER % (strings(SIZE // 4001, b"9" * 4000), b'["a"]'),
    ),
    "data, infer": ("/v2/models/NAME/infer", lambda: INFER % (b"[1]", numbers(SIZE // 2))),
    "nested lists": ("/", lambda: b'{"inputs":' + b"[" * (SIZE // 2) + b"]" * (SIZE // 2) + b"}"),
    "a number of 2 MB": ("/", lambda: b'{"inputs":' + b"1" * SIZE + b"}"),
    "escaped quotes, no end": ("/", lambda: b'{"inputs":"' + b'\\"' * (SIZE // 2)),
    "one text of 2 MB": ("/", lambda: b'{"inputs":"' + b"a lovely film " * (SIZE // 14) + b'"}'),
    "one word of 2 MB": ("/", lambda: b'{"inputs":"' + b"a" * SIZE + b'"}'),
    "one text of 2 MB with an emoji": (
        "/",
        lambda: b'{"inputs":"' + b"a lovely film " * (SIZE // 14) + "\U0001f600".encode() + b'"}',
    ),
    "2 MB of spaces": ("/", lambda: b'{"inputs":"' + b" " * SIZE + b'"}'),
    "512 short texts": ("/", lambda: b'{"inputs":' + strings(512, b'"a lovely film"') + b"}"),
}


@dataclass
class Server:
    """A server process."""

    process: Any
    host: str
    port: int
    name: str

    def memory(self) -> int:
        """Return its resident memory in bytes."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def post(self, path: str, body: bytes) -> int:
        """Send a body; return the status, or 0 without a response."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=WAIT)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", path.replace("NAME", self.name), body, headers)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()


@contextmanager
def serve(model: Path, source: Path, *, files: int | None = None) -> Iterator[Server]:
    """Run a server of the code in `source`."""
    command = [sys.executable, "-m", "offramp", "serve", str(model), "--port", "0"]
    if files is not None:
        command = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", *command]
    environment = os.environ | {"PYTHONPATH": str(source / "src")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            match = re.search(r"http://(\S+):(\d+)", process.stdout.readline() if process.stdout else "")
            assert match is not None, "the server did not start"
            server = Server(process, match[1], int(match[2]), model.resolve().name)
            deadline = time.monotonic() + WAIT
            while _get(server, "/ready") is None and time.monotonic() < deadline:
                time.sleep(0.1)
            for _ in range(3):  # the model's own memory for its longest rows
                server.post("/", b'{"inputs": "' + b"a lovely film " * 1000 + b'"}')
            yield server
        finally:
            process.kill()


def _get(server: Server, path: str, wait: float = 5.0) -> float | None:
    """Return the seconds of a GET request, or None if it failed."""
    start = time.monotonic()
    connection = http.client.HTTPConnection(server.host, server.port, timeout=wait)
    try:
        connection.request("GET", path)
        return time.monotonic() - start if connection.getresponse().status == 200 else None
    except OSError:
        return None
    finally:
        connection.close()


# -- bodies --------------------------------------------------------------------------------------------


def watch(server: Server, pipe: Connection) -> None:
    """In another process: send /health all the time and sample the memory, until the pipe closes; send the maxima."""
    slowest, memory = 0.0, 0
    while not pipe.poll():
        start = time.monotonic()
        _get(server, "/health", WAIT)
        slowest = max(slowest, time.monotonic() - start)
        memory = max(memory, server.memory())
        time.sleep(0.005)
    pipe.send((slowest, memory))


def attack_body(server: Server, path: str, body: bytes) -> dict[str, Any]:
    """Send a body three times; return the worst figures."""
    ours, theirs = multiprocessing.Pipe()
    plain = Server(_Pid(server.process.pid), server.host, server.port, server.name)
    watcher = multiprocessing.Process(target=watch, args=(plain, theirs))
    before = server.memory()
    watcher.start()
    time.sleep(0.2)
    statuses, seconds = [], 0.0
    for _ in range(3):
        start = time.monotonic()
        statuses.append(server.post(path, body))
        seconds = max(seconds, time.monotonic() - start)
        if seconds > 5:
            break
    time.sleep(0.2)
    ours.send(None)
    slowest, memory = ours.recv()
    watcher.join()
    return {
        "bytes": len(body),
        "status": statuses[-1],
        "seconds": round(seconds, 3),
        "health_ms": round(1000 * slowest, 1),
        "memory_mb": round((memory - before) / 1e6, 1),
    }


@dataclass(frozen=True)
class _Pid:
    pid: int


# -- connections -----------------------------------------------------------------------------------------


@dataclass
class Crowd:
    """Open connections to a server."""

    sockets: list[socket.socket] = field(default_factory=list)

    def open(self, server: Server, count: int, first: bytes) -> None:
        """Open connections and send the start of a request on each."""
        for _ in range(count):
            try:
                connection = socket.create_connection((server.host, server.port), timeout=2)
                connection.sendall(first)
            except OSError:
                continue
            self.sockets.append(connection)

    def still_open(self) -> int:
        """Return how many connections the server has not closed."""
        count = 0
        for connection in self.sockets:
            connection.setblocking(False)
            try:
                while connection.recv(4096):
                    pass
            except BlockingIOError:
                count += 1
            except OSError:
                pass
        return count

    def close(self) -> None:
        """Close all connections."""
        for connection in self.sockets:
            connection.close()


SLOW_BODY = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n{"


def attack_connections(model: Path, source: Path, seconds: float) -> dict[str, Any]:
    """Return how many silent, half-sent and slow connections are open after some time."""
    with serve(model, source) as server, ExitStack() as stack:
        crowds = {"silent": (200, b""), "half_sent": (500, b"POST / HTTP/1.1\r\nhost: local"), "slow": (20, SLOW_BODY)}
        opened: dict[str, Crowd] = {}
        for name, (count, first) in crowds.items():
            opened[name] = Crowd()
            stack.callback(opened[name].close)
            opened[name].open(server, count, first)
        end, slowest = time.monotonic() + seconds, 0.0
        while time.monotonic() < end:
            for connection in opened["slow"].sockets:
                with suppress(OSError):
                    connection.sendall(b" ")
            for _ in range(5):
                slowest = max(slowest, _get(server, "/health") or 5.0)
                time.sleep(0.2)
        counts = {f"{name}_open": crowd.still_open() for name, crowd in opened.items()}
        return {"seconds": seconds, "health_ms": round(1000 * slowest, 1), **counts}


def attack_files(model: Path, source: Path) -> dict[str, Any]:
    """Return whether /health is answered with 200 open files and 300 silent connections."""
    with serve(model, source, files=200) as server, ExitStack() as stack:
        crowd = Crowd()
        stack.callback(crowd.close)
        crowd.open(server, 300, b"")
        seconds = [_get(server, "/health") for _ in range(5)]
        answered = [value for value in seconds if value is not None]
        slowest = round(1000 * max(answered), 1) if answered else None
        return {"health_answered": f"{len(answered)} of {len(seconds)}", "health_ms": slowest}


def attack_shutdown(model: Path, source: Path) -> dict[str, Any]:
    """Return how long a server takes to end after SIGTERM, while a body arrives slowly."""
    with serve(model, source) as server, ExitStack() as stack:
        crowd = Crowd()
        stack.callback(crowd.close)
        crowd.open(server, 1, SLOW_BODY)
        over = threading.Event()

        def drip() -> None:
            while not over.wait(1.0):
                try:
                    crowd.sockets[0].sendall(b" ")
                except OSError:
                    return

        threading.Thread(target=drip, daemon=True).start()
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        try:
            server.process.wait(WAIT)
        except subprocess.TimeoutExpired:
            return {"ended": False, "seconds": WAIT}
        finally:
            over.set()
        return {"ended": True, "seconds": round(time.monotonic() - start, 1)}


def main() -> None:
    """Attack a server and print, or save, the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="model folder")
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1], help="clone whose server is measured")
    parser.add_argument("--only", help="attacks whose name contains this")
    parser.add_argument("--record", choices=["before", "after"], help="save the figures under this name")
    parser.add_argument("--wait", type=float, default=45.0, help="seconds that slow connections are kept")
    args = parser.parse_args()
    results: dict[str, Any] = {"date": f"{date.today()}", "cpu": cpu_name(), "bodies": {}, "connections": {}}
    for name, (path, body) in BODIES.items():
        if args.only is None or args.only in name:
            with serve(args.model, args.source) as server:
                results["bodies"][name] = attack_body(server, path, body())
            print(f"{name}: {json.dumps(results['bodies'][name])}", flush=True)
    attacks: dict[str, Callable[[], dict[str, Any]]] = {
        "silent and slow connections": lambda: attack_connections(args.model, args.source, args.wait),
        "200 open files": lambda: attack_files(args.model, args.source),
        "SIGTERM with a slow body": lambda: attack_shutdown(args.model, args.source),
    }
    for name, attack in attacks.items():
        if args.only is None or args.only in name:
            results["connections"][name] = attack()
            print(f"{name}: {json.dumps(results['connections'][name])}", flush=True)
    if args.record is not None:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{args.record}.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
