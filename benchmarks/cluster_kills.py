"""Ten kills of drivers, workers and machines of a batch job, on disk and on S3: how many rows are missing or duplicate.

    python benchmarks/cluster_kills.py [--rows 40000] [--minutes 20]

A local Ray cluster with two machines of one core each, and a local S3 server (moto), all on loopback addresses. Each
kill is a SIGKILL as soon as two more parts are finished. A killed driver is started again with the same command, a
killed machine is replaced. Afterwards the job runs to its end; predictions are compared with those of one process, and
the folder, unfinished uploads and temporary copies of the model are searched for leftovers. Then `--overwrite` repeats
the job. The script stops after `--minutes`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import fsspec.core
import pyarrow as pa
import pyarrow.parquet

import offramp
from million_lines import make_model
from offramp.core.machine import cpu_name
from setting import read_texts

RESULTS = Path(__file__).parent / "results" / "cluster_kills.json"
KILLS = ("worker", "driver", "machine", "worker", "driver", "worker", "machine", "worker", "driver", "worker")
ROWS_PER_PART = 100
PARTS_BEFORE_KILL = 2
NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.2"}  # Ray replaces 127.0.0.1 by the machine's address


class Job:
    """A batch job whose drivers, workers and machines are killed."""

    def __init__(self, cluster: Any, temporary: Path, call: list[str], output: str):
        self.cluster, self.temporary, self.output = cluster, temporary, output
        self.call = [*call, "--output", output]
        self.system, self.path = fsspec.core.url_to_fs(output)
        self.driver: subprocess.Popen[bytes] | None = None
        self.drivers = 0

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a driver."""
        command = [sys.executable, "-m", "offramp", *self.call, *options, "--address", self.cluster.address]
        self.drivers += 1
        self.driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self.driver

    def names(self) -> list[str]:
        """Return the names of all files in the output folder, also hidden ones."""
        self.system.invalidate_cache()
        found = self.system.find(self.path) if self.system.exists(self.path) else []
        return sorted(name.removeprefix(f"{self.path}/") for name in found)

    def parts(self) -> int:
        """Return the number of finished parts."""
        return sum(name.startswith("part-") for name in self.names())

    def kill(self, victim: str) -> None:
        """Wait until more parts are finished, then kill the driver, a worker or a machine."""
        driver = self.driver if self.driver and self.driver.poll() is None else self.start()
        goal = self.parts() + PARTS_BEFORE_KILL
        wait_for(lambda: self.parts() >= goal or driver.poll() is not None)
        if driver.poll() is not None:
            raise SystemExit("The job ended before all kills; use more --rows.")
        if victim == "driver":
            driver.kill()
            driver.wait()
        elif victim == "worker":
            wait_for(lambda: bool(self.worker_pids()))
            os.kill(random.choice(self.worker_pids()), signal.SIGKILL)
        else:
            self.cluster.remove_node(self.cluster.list_all_nodes()[-1], allow_graceful=False)
            self.cluster.add_node(**NODE)

    def worker_pids(self) -> list[int]:
        """Return the workers of this cluster: its processes have their own temporary folder."""
        pids = []
        for path in Path("/proc").iterdir():
            try:
                is_worker = path.name.isdigit() and (path / "cmdline").read_bytes().startswith(b"ray::MapWorker")
                if is_worker and f"TMPDIR={self.temporary}".encode() in (path / "environ").read_bytes().split(b"\0"):
                    pids.append(int(path.name))
            except OSError:
                continue
        return pids

    def finish(self, *options: str) -> None:
        """Wait for the driver, or run one to the end."""
        driver = self.driver if self.driver and self.driver.poll() is None and not options else self.start(*options)
        if driver.wait() != 0:
            raise SystemExit(f"offramp predict failed with status {driver.returncode}")

    def check(self, labels: list[str]) -> dict[str, int]:
        """Return the number of missing, duplicate and different rows, and of leftovers."""
        rows = []
        for name in self.names():
            if name.startswith("part-"):
                with self.system.open(f"{self.path}/{name}") as file:
                    rows += pa.parquet.read_table(file, columns=["id", "label"]).to_pylist()
        counts = Counter(row["id"] for row in rows)
        job = json.loads(self.system.cat_file(f"{self.path}/_job.json"))
        parts = -(-len(labels) // job["rows"])
        expected = {"_job.json", *(f"part-{number:06d}.parquet" for number in range(parts))}
        uploads = 0
        if hasattr(self.system, "call_s3"):
            uploads = len(self.system.call_s3("list_multipart_uploads", Bucket="bucket").get("Uploads", ()))
        return {
            "missing": sum(number not in counts for number in range(len(labels))),
            "duplicate": sum(count > 1 for count in counts.values()),
            "different": sum(row["label"] != labels[row["id"]] for row in rows),
            "leftovers": len(set(self.names()) ^ expected)
            + uploads
            + len(list(self.temporary.glob(".offramp-model-*"))),
        }


def wait_for(condition: Callable[[], bool], seconds: float = 180) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"Nothing happened for {seconds} seconds.")
        time.sleep(0.02)


def start_s3() -> Any:
    """Start an S3 server with an empty bucket; drivers and workers find it in the environment."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    os.environ |= {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    fsspec.core.url_to_fs("s3://bucket")[0].mkdir("bucket")
    return server


def run(cluster: Any, temporary: Path, call: list[str], output: str, labels: list[str]) -> dict[str, Any]:
    """Kill ten times, finish and overwrite; return what was found."""
    start, job = time.perf_counter(), Job(cluster, temporary, call, output)
    try:
        for victim in KILLS:
            job.kill(victim)
            print(f"{output}: killed a {victim} after {job.parts()} parts", flush=True)
        job.finish()
        record: dict[str, Any] = {"drivers": job.drivers, "after the kills": job.check(labels)}
        job.finish("--overwrite", "--chunk", str(10 * ROWS_PER_PART))
        record["after --overwrite"] = job.check(labels)
    finally:
        if job.driver is not None and job.driver.poll() is None:
            job.driver.kill()
            job.driver.wait()
    return record | {"seconds": time.perf_counter() - start}


def main() -> None:
    """Run on disk and on S3."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--minutes", type=float, default=20)
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"Stopped after {args.minutes} minutes."))
    signal.setitimer(signal.ITIMER_REAL, 60 * args.minutes)
    random.seed(0)
    texts = [" ".join(text.split()[:12]) for text in read_texts(None, 5000)]
    texts = [texts[number % len(texts)] for number in range(args.rows)]
    results: dict[str, Any] = {"date": date.today().isoformat(), "cpu": cpu_name(), "rows": args.rows}
    results |= {"parts": -(-args.rows // ROWS_PER_PART), "kills": dict(Counter(KILLS))}
    with tempfile.TemporaryDirectory(prefix="offramp-kills-") as name:
        folder, temporary = Path(name), Path(name) / "tmp"
        temporary.mkdir()
        make_model(folder / "model", texts)
        table = pa.table({"id": list(range(args.rows)), "text": texts})
        pa.parquet.write_table(table, folder / "rows.parquet", row_group_size=5000)
        labels = [str(answer.label) for answer in offramp.load(folder / "model").predict(texts, progress=False)]
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_worker_niceness": "0"}
        os.environ |= {"TMPDIR": str(temporary), "RAY_TMPDIR": tempfile.gettempdir()}
        server = start_s3()
        system = fsspec.core.url_to_fs("s3://bucket")[0]
        system.put_file(str(folder / "rows.parquet"), "bucket/rows/rows.parquet")
        for path in (folder / "model").iterdir():
            system.put_file(str(path), f"bucket/model/{path.name}")
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        try:
            cluster.add_node(**NODE)
            ray = ["--engine", "ray", "--chunk", str(ROWS_PER_PART)]
            disk = ["predict", str(folder / "model"), str(folder / "rows.parquet"), *ray]
            results["disk"] = run(cluster, temporary, disk, str(folder / "answers"), labels)
            s3 = ["predict", "s3://bucket/model", "s3://bucket/rows", *ray]
            results["S3"] = run(cluster, temporary, s3, "s3://bucket/answers", labels)
        finally:
            cluster.shutdown()
            server.stop()
    print(json.dumps(results, indent=1))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
