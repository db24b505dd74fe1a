"""Kill parts of a running batch job, and look at what it wrote."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from offramp.cli.main import main
from tests import programs


def start_driver(call: list[str], address: str) -> programs.Started:
    """Start `offramp predict` in another process, on a running cluster."""
    return programs.Started(programs.offramp, [*call, "--address", address])


def worker_pids(temporary: Path) -> list[int]:
    """Return the workers of this test's cluster: its processes have their own temporary folder."""
    pids = []
    for path in Path("/proc").iterdir():
        try:
            is_worker = path.name.isdigit() and (path / "cmdline").read_bytes().startswith(b"ray::MapWorker")
            if is_worker and f"TMPDIR={temporary}".encode() in (path / "environ").read_bytes().split(b"\0"):
                pids.append(int(path.name))
        except OSError:
            continue
    return pids


def kill_workers(temporary: Path) -> int:
    """Kill all workers; return their number."""
    pids = worker_pids(temporary)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def wait_for(condition, seconds: float = 120):
    """Wait until the condition is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return value


def error_of(capture, *arguments) -> str:
    """Run a command that fails; return its error. Ray may print the deaths of earlier tests to standard output."""
    assert main([str(argument) for argument in arguments]) == 2
    return capture.readouterr().err


def unexpected(names: list[str], parts: int) -> list[str]:
    """Return the names that are missing or do not belong there after a job with that many parts."""
    expected = {"_job.json", *(f"part-{number:06d}.parquet" for number in range(parts))}
    return sorted(set(names) ^ expected)
