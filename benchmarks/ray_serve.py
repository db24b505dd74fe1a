"""Run examples/deploy/ray_serve.py under load: does it answer other requests while the model runs, and refuse bad ones.

    pip install 'ray[serve]'
    python benchmarks/ray_serve.py MODEL [--seconds 10]

Clients send large requests without pause. Meanwhile another one asks for `/health` and sends invalid bodies. The script
prints the slowest `/health` beside the time that a prediction takes, and exits with code 1 if a status is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[1] / "examples" / "deploy" / "ray_serve.py"
URL = "http://127.0.0.1:8000"
CLIENTS, TEXTS = 8, 64
TEXT = "a lovely short film in the long plot that was not very good " * 4
INVALID = {
    "no JSON": b"{",
    "no inputs": b"{}",
    "a number": b'{"inputs": 5}',
    "no text": b'{"inputs": []}',
    "half a character": b'{"inputs": "\\ud800"}',
    "too many texts": json.dumps({"inputs": ["x"] * (TEXTS + 1)}).encode(),
}


def send(path: str = "/", content: bytes | None = None) -> tuple[int, float, Any]:
    """Send a request; return status, seconds and the parsed response."""
    started = time.perf_counter()
    request = urllib.request.Request(URL + path, content, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            status, body = reply.status, reply.read()
    except urllib.error.HTTPError as err:
        status, body = err.code, err.read()
    return status, time.perf_counter() - started, json.loads(body)


def load(over: threading.Event, done: list[tuple[int, float, Any]]) -> None:
    """Send large requests until it is over."""
    content = json.dumps({"inputs": [TEXT] * TEXTS}).encode()
    while not over.is_set():
        done.append(send("/", content))


def measure(seconds: float) -> bool:
    """Send all kinds of requests for some seconds, print a summary, and return whether all statuses are right."""
    over, predictions = threading.Event(), list[tuple[int, float, Any]]()
    clients = [threading.Thread(target=load, args=(over, predictions)) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    health, refused = [], dict[str, int]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        health.append(send("/health"))
        for name, content in INVALID.items():
            refused[name] = send("/", content)[0]
        time.sleep(0.02)
    over.set()
    for client in clients:
        client.join()
    times = [entry[1] for entry in predictions]
    print(f"{len(times)} requests of {TEXTS} texts: median {statistics.median(times):.2f} s, {CLIENTS} clients")
    print(f"{len(health)} × /health meanwhile: slowest {max(entry[1] for entry in health):.3f} s")
    print(f"invalid bodies: {refused}")
    complete = all(status == 200 and len(body) == TEXTS for status, _, body in predictions)
    return complete and all(entry[0] == 200 for entry in health) and set(refused.values()) == {400}


def main() -> int:
    """Start Ray and the deployment, measure, and stop them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    os.environ |= {"MODEL": str(Path(args.model).resolve()), "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    import ray
    from ray import serve

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        serve.run(runpy.run_path(str(EXAMPLE))["app"])
        one = send("/", b'{"inputs": "a lovely film"}')
        print(f"one text: {one[0]}, {one[2]}")
        return 0 if measure(args.seconds) and one[0] == 200 else 1
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
