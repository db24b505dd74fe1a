"""Latency under load, on loopback: the figures of docs/how-to/serve.md.

    python benchmarks/load.py MODEL --data-dir GLUE [--backend onnx] [--graph FULL.onnx] [--seconds 15] [--soak 100000]

Three servers, one after the other on the core that --server-core names, the client on another: `offramp serve` with the
model's calibrated policy; the same with `never`; a plain full-depth int8 server of a few lines (plain_server.py). First
each one's capacity is found (clients that wait for their answer), then texts arrive at random (Poisson) whether or not
answers come, at shares of that; latency counts from when a text was meant to be sent. Then the highest rate is searched
at which 99 % of the texts are answered within --limit seconds: the goodput. At last ten times the capacity for a few
seconds: who is refused, what /health takes. FULL.onnx is an export of the last exit alone (`--exits 12`). --soak sends
so many requests to the first server and looks at its memory. The figure goes to docs/figures/load.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from offramp.core.machine import cpu_name
from offramp.data.rows import DataOptions, load_rows
from offramp.model.config import AdaptiveConfig

RESULTS = Path(__file__).parent / "results" / "load.json"
HERE = Path(__file__).parent
FIGURE = HERE.parent / "docs" / "figures" / "load.svg"
SHARES = (0.3, 0.6, 0.9, 1.1)


class Client:
    """Keep-alive connections to one server; a request is one text."""

    def __init__(self, port: int):
        self.port = port
        self.free: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.LifoQueue()

    async def get(self, path: str) -> tuple[int, float]:
        """Status and seconds."""
        return await self._call(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())

    async def ask(self, text: str) -> tuple[int, float]:
        """Status and seconds."""
        body = json.dumps({"inputs": text}).encode()
        head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return await self._call(head.encode() + body)

    async def _call(self, request: bytes) -> tuple[int, float]:
        start = time.perf_counter()
        while True:
            is_new = self.free.empty()
            if is_new:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            else:
                reader, writer = self.free.get_nowait()
            try:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
            except (OSError, asyncio.IncompleteReadError):
                writer.close()
                if is_new:
                    return 0, time.perf_counter() - start
                continue  # it was idle for too long and is closed: as every client does, once more
            self.free.put_nowait((reader, writer))
            return int(head[9:12]), time.perf_counter() - start


async def capacity(client: Client, texts: list[str], seconds: float, clients: int = 64) -> float:
    """Answers a second when clients wait for theirs."""
    count, until = 0, time.perf_counter() + seconds
    drawn = random.Random(0)

    async def one() -> None:
        nonlocal count
        while time.perf_counter() < until:
            status, _ = await client.ask(drawn.choice(texts))
            count += status == 200

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    return count / (time.perf_counter() - start)


async def offered(client: Client, texts: list[str], rate: float, seconds: float, probe: bool = False) -> dict[str, Any]:
    """Texts arrive at random, whatever becomes of those before."""
    drawn, found, tasks = random.Random(1), [], []
    start = due = time.perf_counter()

    async def one(meant: float) -> None:
        status, _ = await client.ask(drawn.choice(texts))
        found.append((status, time.perf_counter() - meant))

    looker = await _looking(client.port, seconds) if probe else None
    while due < start + seconds:
        due += drawn.expovariate(rate)
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    fine = np.array([took for status, took in found if status == 200])
    statuses = {str(status): sum(one == status for one, _ in found) for status in {one for one, _ in found}}
    took = time.perf_counter() - start  # until the last answer
    told: dict[str, Any] = {"rate": rate, "statuses": statuses, "answered": len(fine) / took}
    if len(fine):
        told |= dict(zip(("p50", "p95", "p99"), np.quantile(fine, [0.5, 0.95, 0.99]).tolist(), strict=True))
    if looker is not None:
        told["health_worst"] = float((await looker.communicate())[0])
    return told


PROBE = """
import http.client, sys, time
line, until, worst = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1])), time.time() + float(sys.argv[2]), 0.0
while time.time() < until:
    start = time.perf_counter()
    line.request("GET", "/health")
    assert line.getresponse().read() == b"ok"
    worst = max(worst, time.perf_counter() - start)
    time.sleep(0.05)
print(worst)
"""


async def _looking(port: int, seconds: float) -> asyncio.subprocess.Process:
    """Somebody else who asks for /health all the while: this process is busy itself."""
    command = [sys.executable, "-c", PROBE, str(port), str(seconds)]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


async def goodput(client: Client, texts: list[str], most: float, limit: float, seconds: float) -> dict[str, Any]:
    """The highest rate at which 99 of 100 texts are answered in time, by halving."""
    low, high, best = 0.0, 1.05 * most, {"rate": 0.0}
    for _ in range(6):
        rate = (low + high) / 2
        found = await offered(client, texts, rate, seconds)
        fine = set(found["statuses"]) == {"200"} and found["p99"] <= limit
        low, high, best = (rate, high, found) if fine else (low, rate, best)
    return best


async def soak(client: Client, texts: list[str], requests: int, process: Any) -> dict[str, Any]:
    """Memory while many requests come."""
    drawn, left, found = random.Random(2), requests, []
    statuses: dict[str, int] = {}
    start = time.perf_counter()

    async def one() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            if left % (requests // 10) == 0:
                found.append(round(memory(process), 1))
            status, _ = await client.ask(drawn.choice(texts))
            statuses[str(status)] = statuses.get(str(status), 0) + 1

    await asyncio.gather(*(one() for _ in range(32)))
    return {"seconds": time.perf_counter() - start, "statuses": statuses, "memory": found}


def start(command: list[str], core: int | None) -> tuple[Any, int]:
    """A server, ready, and its port."""
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    process = subprocess.Popen([*pinned, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return process, int(command[command.index("--port") + 1])


async def ready(port: int) -> None:
    """Wait for it."""
    for _ in range(600):
        try:
            if (await Client(port).get("/ready"))[0] == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.2)
    raise SystemExit("the server did not come up")


def memory(process: Any) -> float:
    """Resident megabytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


async def measure(args: argparse.Namespace, texts: list[str]) -> dict[str, Any]:
    """All servers."""
    serve = [sys.executable, "-m", "offramp", "serve", args.model, "--backend", args.backend, "--threads", "1"]
    servers = {
        "offramp, leaving early": [*serve, "--port", "8101"],
        "offramp, never": [*serve, "--policy", "never", "--port", "8102"],
    }
    if args.graph:
        plain = [sys.executable, str(HERE / "plain_server.py"), args.graph, args.model]
        servers["plain ONNX Runtime int8"] = [*plain, "--port", "8103"]
    found: dict[str, Any] = {}
    for name, command in servers.items():
        process, port = start(command, args.server_core)
        try:
            await ready(port)
            client = Client(port)
            most = await capacity(client, texts, args.seconds)
            one: dict[str, Any] = {"capacity": most, "memory": [memory(process)]}
            one["own"] = [await offered(client, texts, share * most, args.seconds) for share in SHARES]
            one["goodput"] = await goodput(client, texts, most, args.limit, args.seconds)
            one["overload"] = await offered(client, texts, 10 * most, 5.0, probe="offramp" in name)
            one["memory"].append(memory(process))
            if args.soak and not found:
                one["soak"] = await soak(client, texts, args.soak, process)
            found[name] = one
            print(name, json.dumps(one), flush=True)
        finally:
            process.terminate()
            process.wait()
    return found


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--backend", default="onnx")
    parser.add_argument("--graph", help="a full-depth graph for the plain server")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--limit", type=float, default=0.1, help="seconds that 99 %% of the texts may take")
    parser.add_argument("--soak", type=int, default=0)
    parser.add_argument("--server-core", type=int)
    parser.add_argument("--client-core", type=int)
    args = parser.parse_args()
    if args.client_core is not None:
        os.sched_setaffinity(0, {args.client_core})
    config = AdaptiveConfig.from_pretrained(args.model)
    texts = load_rows(args.model, config, DataOptions(task="sst-2", data_dir=args.data_dir), "dev").rows.texts
    found = asyncio.run(measure(args, [str(text) for text in texts]))
    about = {
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "model": Path(args.model).name,
        "backend": args.backend,
        "seconds": args.seconds,
        "limit": args.limit,
    }
    RESULTS.write_text(json.dumps(about | {"servers": found}, indent=1) + "\n", "utf-8")
    draw(found, args.limit)


def draw(servers: dict[str, Any], limit: float) -> None:
    """Latency by rate, for each server."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for colour, (name, one) in zip(("#0b6e99", "#c96a00", "#6b7680"), servers.items(), strict=False):
        rates = [point["rate"] for point in one["own"]]
        for share, style in (("p99", "o-"), ("p50", "o--")):
            label = f"{name}, {'99 %' if share == 'p99' else 'half'}"
            axes.plot(rates, [1000 * point[share] for point in one["own"]], style, color=colour, label=label)
    axes.axhline(1000 * limit, color="#999999", linewidth=0.8)
    axes.set(xlabel="texts a second that arrive", ylabel="milliseconds", yscale="log")
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
