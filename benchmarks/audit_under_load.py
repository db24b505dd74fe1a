"""A saturated server whose thresholds are too loose: when its audit raises an alarm, and what audits cost.

    python benchmarks/audit_under_load.py MODEL --data-dir GLUE --work DIR [--seconds 60] [--audit 0.05] [--loosen 1.1]

MODEL is a classifier of SST-2 that was calibrated with `offramp calibrate --policy entropy`. A copy of it in DIR gets a
threshold that is --loosen times as large, but keeps its guarantee. It is served over loopback with different audits,
one after the other; 64 clients send the sentences of SST-2's dev set without a pause, so requests always wait. The
server and the client run on separate cores (--server-core, --client-core). For the throughput, servers with and without
an audit take turns of a quarter of the time; texts are counted per second of the server's CPU time, which other
processes of the machine hardly change, and the cost is the median of the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
import urllib.request
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from load import Client, capacity, start_server, wait_until_ready
from offramp.core.machine import cpu_name
from offramp.data.rows import DataOptions, load_rows
from offramp.model.config import AdaptiveConfig

RESULTS = Path(__file__).parent / "results" / "audit_under_load.json"
CLIENTS = 64
ROUNDS = 5
PORT = 8111


def loosen(model: Path, folder: Path, factor: float) -> Path:
    """Copy a calibrated model and multiply its threshold; the guarantee still claims to hold."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder)
    file = folder / "config.json"
    config = json.loads(file.read_text("utf-8"))
    config["policy"]["threshold"] *= factor
    file.write_text(json.dumps(config), "utf-8")
    config["calibrated"]["policy"] = str(AdaptiveConfig.from_pretrained(folder).exit_policy)
    file.write_text(json.dumps(config), "utf-8")
    return folder


def info() -> dict[str, Any]:
    """Return the server's description of itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/info", timeout=30) as reply:
        content: dict[str, Any] = json.loads(reply.read())
    return content


async def watch(until: float) -> dict[str, Any]:
    """Return when the first alarm was seen while the clients were sending, and the last counts before they stopped."""
    start = time.perf_counter()
    result: dict[str, Any] = {"alarm": None, "fewest_waiting": None, "audit": None}
    while time.perf_counter() < until:
        content = await asyncio.to_thread(info)
        audit, waiting = content["audit"], content["waiting"]
        if result["fewest_waiting"] is None or waiting < result["fewest_waiting"]:
            result["fewest_waiting"] = waiting
        if result["alarm"] is None and (audit["violated"] or audit["drifting"]):
            test = "violation" if audit["violated"] else "drift"
            result["alarm"] = {"seconds": time.perf_counter() - start, "test": test, "audited": audit["audited"]}
        result["audit"] = audit
        await asyncio.sleep(0.25)
    return result


def cpu_seconds(process: Any) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(
    model: Path, options: list[str], texts: list[str], seconds: float, core: int | None
) -> dict[str, Any]:
    """Serve a model and saturate it."""
    command = [sys.executable, "-m", "offramp", "serve", str(model), "--threads", "1", "--port", str(PORT), *options]
    process, port = start_server(command, core)
    try:
        await wait_until_ready(port)
        client = Client(port)
        end, cpu_before = time.perf_counter() + seconds, cpu_seconds(process)
        throughput, watched = await asyncio.gather(capacity(client, texts, seconds, CLIENTS), watch(end - 0.5))
        per_cpu_second = throughput * seconds / (cpu_seconds(process) - cpu_before)
        return {"throughput": throughput, "per_cpu_second": per_cpu_second, **watched}
    finally:
        process.terminate()
        process.wait()


async def run_all(model: Path, loose: Path, texts: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Measure all servers, then the throughput in turns."""
    audit = ["--audit", str(args.audit)]
    servers = {
        "loosened, share 0.05": (loose, audit),
        "loosened, share 0": (loose, [*audit, "--audit-share", "0"]),
        "calibrated, share 0.05": (model, audit),
    }
    results: dict[str, Any] = {}
    for name, (folder, options) in servers.items():
        results[name] = await measure(folder, options, texts, args.seconds, args.server_core)
        print(name, json.dumps(results[name]), flush=True)
    rounds, alarms = [], []
    for _ in range(ROUNDS):
        turns = [await measure(loose, options, texts, args.seconds / 4, args.server_core) for options in ([], audit)]
        rounds.append([turn["per_cpu_second"] for turn in turns])
        alarms.append(turns[1]["alarm"])
        print("texts per CPU second without and with an audit, alarm:", rounds[-1], alarms[-1], flush=True)
    ratio = median(after / before for before, after in rounds)
    return {"servers": results, "rounds": rounds, "alarms": alarms, "ratio": ratio}


def main() -> None:
    """Measure and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--audit", type=float, default=0.05)
    parser.add_argument("--loosen", type=float, default=1.1)
    parser.add_argument("--server-core", type=int)
    parser.add_argument("--client-core", type=int)
    args = parser.parse_args()
    if args.client_core is not None:
        os.sched_setaffinity(0, {args.client_core})
    config = AdaptiveConfig.from_pretrained(args.model)
    rows = load_rows(str(args.model), config, DataOptions(task="sst-2", data_dir=args.data_dir), "dev").rows
    loose = loosen(args.model, args.work / "loosened", args.loosen)
    about = {
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "guarantee": config.calibrated["sentence"],
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "seconds": args.seconds,
        "audit": args.audit,
        "loosen": args.loosen,
        "clients": CLIENTS,
    }
    results = asyncio.run(run_all(args.model, loose, [str(text) for text in rows.texts], args))
    RESULTS.write_text(json.dumps(about | results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
