"""Latency under load, over loopback: the results of docs/how-to/serve.md.

    python benchmarks/load.py MODEL --data-dir GLUE [--backend onnx] [--graph FULL.onnx] [--seconds 15]

Three servers run one after the other on the core --server-core, the client on another core: `offramp serve` with the
model's calibrated policy; the same with the policy `never`; a minimal full-depth int8 server (plain_server.py). For
each server:

- capacity: responses per second with closed-loop clients.
- latency at fractions of the capacity with Poisson arrivals, from the scheduled send time.
- goodput: the highest rate at which 99 % of the texts are answered within --limit seconds.
- overload: ten times the capacity for a few seconds; rejected requests, and the latency of /health.

FULL.onnx is an export of the last exit only (`--exits 12`). The figure is docs/figures/load.svg.

    python benchmarks/load.py RERANKER --rankings queries.jsonl [--seconds 8] [--limit 2]

does the same for a reranker: a request to `/rerank` has a query with all its documents, and rates are in queries. The
record is results/load_rankings.json; there is no plain server and no figure.
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
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from offramp.core.machine import cpu_name
from offramp.data.rows import DataOptions, load_rows
from offramp.model.config import AdaptiveConfig

RESULTS = Path(__file__).parent / "results" / "load.json"
RANKING_RESULTS = RESULTS.with_name("load_rankings.json")
HERE = Path(__file__).parent
FIGURE = HERE.parent / "docs" / "figures" / "load.svg"
SHARES = (0.3, 0.6, 0.9, 1.1)

Item = str | dict[str, Any]  # a text, or the body of a request to /rerank


class Client:
    """Keep-alive connections to a server; each request has one text, or one query with its documents."""

    def __init__(self, port: int):
        self.port = port
        self.free: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.LifoQueue()

    async def get(self, path: str) -> tuple[int, float]:
        """Return status and seconds."""
        return await self._call(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())

    async def post(self, item: Item) -> tuple[int, float]:
        """Return status and seconds."""
        path, content = ("/", {"inputs": item}) if isinstance(item, str) else ("/rerank", item)
        body = json.dumps(content).encode()
        headers = f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        head = f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n"
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
                continue  # the idle connection was closed by the server: retry, as every client does
            self.free.put_nowait((reader, writer))
            return int(head[9:12]), time.perf_counter() - start


async def capacity(client: Client, texts: Sequence[Item], seconds: float, clients: int = 64) -> float:
    """Return responses per second with clients that wait for each response."""
    count, end = 0, time.perf_counter() + seconds
    rng = random.Random(0)

    async def send_requests() -> None:
        nonlocal count
        while time.perf_counter() < end:
            status, _ = await client.post(rng.choice(texts))
            count += status == 200

    start = time.perf_counter()
    await asyncio.gather(*(send_requests() for _ in range(clients)))
    return count / (time.perf_counter() - start)


async def offer_load(
    client: Client, texts: Sequence[Item], rate: float, seconds: float, probe: bool = False
) -> dict[str, Any]:
    """Send texts with Poisson arrivals, without waiting for responses; return statuses and latencies."""
    rng, responses, tasks = random.Random(1), [], list[asyncio.Task[None]]()
    start = due = time.perf_counter()

    async def send_request(scheduled: float) -> None:
        status, _ = await client.post(rng.choice(texts))
        responses.append((status, time.perf_counter() - scheduled))

    health_probe = await _start_health_probe(client.port, seconds) if probe else None
    while due < start + seconds:
        due += rng.expovariate(rate)
        if tasks and due >= start + seconds:  # at low rates, the next one may be minutes away
            break
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(send_request(due)))
    await asyncio.gather(*tasks)
    latencies = np.array([latency for status, latency in responses if status == 200])
    statuses: dict[str, int] = {}
    for status, _ in responses:
        statuses[str(status)] = statuses.get(str(status), 0) + 1
    total = time.perf_counter() - start  # until the last response
    result: dict[str, Any] = {"rate": rate, "statuses": statuses, "answered": len(latencies) / total}
    if len(latencies):
        result |= dict(zip(("p50", "p95", "p99"), np.quantile(latencies, [0.5, 0.95, 0.99]).tolist(), strict=True))
    if health_probe is not None:
        result["health_worst"] = float((await health_probe.communicate())[0])
    return result


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


async def _start_health_probe(port: int, seconds: float) -> asyncio.subprocess.Process:
    """Start a process that polls /health; this process is too busy to measure it."""
    command = [sys.executable, "-c", PROBE, str(port), str(seconds)]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


async def goodput(
    client: Client, texts: Sequence[Item], maximum: float, limit: float, seconds: float
) -> dict[str, Any]:
    """Return the highest rate at which p99 is within the limit, by bisection."""
    low, high, best = 0.0, 1.05 * maximum, {"rate": 0.0}
    for _ in range(6):
        rate = (low + high) / 2
        result = await offer_load(client, texts, rate, seconds)
        ok = set(result["statuses"]) == {"200"} and result["p99"] <= limit
        low, high, best = (rate, high, result) if ok else (low, rate, best)
    return best


def start_server(command: list[str], core: int | None) -> tuple[Any, int]:
    """Start a server; return its process and port."""
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    process = subprocess.Popen([*pinned, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return process, int(command[command.index("--port") + 1])


async def wait_until_ready(port: int) -> None:
    """Wait until a server is ready."""
    for _ in range(600):
        try:
            if (await Client(port).get("/ready"))[0] == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.2)
    raise SystemExit("the server did not start")


def memory(process: Any) -> float:
    """Return the resident memory of a process in MB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


async def measure(args: argparse.Namespace, texts: Sequence[Item]) -> dict[str, Any]:
    """Measure all servers."""
    serve = [sys.executable, "-m", "offramp", "serve", args.model, "--backend", args.backend, "--threads", "1"]
    servers = {
        "offramp, leaving early": [*serve, "--port", "8101"],
        "offramp, never": [*serve, "--policy", "never", "--port", "8102"],
    }
    if args.graph:
        plain = [sys.executable, str(HERE / "plain_server.py"), args.graph, args.model]
        servers["plain ONNX Runtime int8"] = [*plain, "--port", "8103"]
    results: dict[str, Any] = {}
    for name, command in servers.items():
        process, port = start_server(command, args.server_core)
        try:
            await wait_until_ready(port)
            client = Client(port)
            maximum = await capacity(client, texts, args.seconds, 8 if args.rankings else 64)
            result: dict[str, Any] = {"capacity": maximum, "memory": [memory(process)]}
            result["own"] = [await offer_load(client, texts, share * maximum, args.seconds) for share in SHARES]
            result["goodput"] = await goodput(client, texts, maximum, args.limit, args.seconds)
            result["overload"] = await offer_load(client, texts, 10 * maximum, 5.0, probe="offramp" in name)
            result["memory"].append(memory(process))
            results[name] = result
            print(name, json.dumps(result), flush=True)
        finally:
            process.terminate()
            process.wait()
    return results


def main() -> None:
    """Measure and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data-dir")
    parser.add_argument("--rankings", type=Path, help="queries with documents, for a reranker")
    parser.add_argument("--backend", default="onnx")
    parser.add_argument("--graph", help="a full-depth graph for the plain server")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--limit", type=float, default=0.1, help="maximum p99 in seconds (default: %(default)s)")
    parser.add_argument("--server-core", type=int)
    parser.add_argument("--client-core", type=int)
    args = parser.parse_args()
    if args.client_core is not None:
        os.sched_setaffinity(0, {args.client_core})
    texts = read_rankings(args.rankings) if args.rankings else read_texts(args)
    servers = asyncio.run(measure(args, texts))
    about = {
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "model": Path(args.model).name,
        "backend": args.backend,
        "seconds": args.seconds,
        "limit": args.limit,
    }
    if args.rankings:
        about |= {
            "load": os.getloadavg()[1],
            "queries": len(texts),
            "documents": max(len(text["texts"]) for text in texts if isinstance(text, dict)),
        }
    record = RANKING_RESULTS if args.rankings else RESULTS
    record.write_text(json.dumps(about | {"servers": servers}, indent=1) + "\n", "utf-8")
    if not args.rankings:
        draw(servers, args.limit)


def read_texts(args: argparse.Namespace) -> list[Item]:
    """Return the sentences of SST-2's dev set."""
    config = AdaptiveConfig.from_pretrained(args.model)
    rows = load_rows(args.model, config, DataOptions(task="sst-2", data_dir=args.data_dir), "dev").rows
    return [str(text) for text in rows.texts]


def read_rankings(file: Path) -> list[Item]:
    """Return the bodies of requests to /rerank."""
    rankings = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [{"query": ranking["query"], "texts": ranking["documents"], "truncate": True} for ranking in rankings]


def draw(servers: dict[str, Any], limit: float) -> None:
    """Draw latency by request rate, for each server."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for colour, (name, server) in zip(("#0b6e99", "#c96a00", "#6b7680"), servers.items(), strict=False):
        rates = [point["rate"] for point in server["own"]]
        for percentile, style in (("p99", "o-"), ("p50", "o--")):
            latencies = [1000 * point[percentile] for point in server["own"]]
            axes.plot(rates, latencies, style, color=colour, label=f"{name}, {percentile}")
    axes.axhline(1000 * limit, color="#999999", linewidth=0.8)
    axes.set(xlabel="requests per second", ylabel="latency, ms", yscale="log")
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    pyplot.rcParams["svg.hashsalt"] = "offramp"  # the same figure is the same file
    figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
