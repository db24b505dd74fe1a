"""Programs in separate processes, forked from a server that has imported the libraries, so they start fast.

Tests that need a fresh interpreter (about imports or shutdown) start one themselves.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TextIO

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "offramp.training.run",
        "offramp.originals.convert",
        "offramp.runtimes.loading",
        "offramp.serving.app",
        "transformers.models.bert.modeling_bert",
    ]
)


@dataclass
class Completed:
    """A finished program; as in `subprocess`, a negative code is the signal that killed it."""

    code: int
    stdout: str
    stderr: str


def run(*calls: tuple[Any, ...]) -> list[Completed]:
    """Run `(function, *arguments)` calls in parallel until all have finished; each returns its exit code."""
    processes, pipes = [], []
    for function, *arguments in calls:
        (stdout_reader, stdout), (stderr_reader, stderr) = CONTEXT.Pipe(duplex=False), CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_run_child, args=(function, arguments, stdout, stderr))
        process.start()
        stdout.close()
        stderr.close()
        processes.append(process)
        pipes += [stdout_reader, stderr_reader]
    with ThreadPoolExecutor(len(pipes)) as pool:
        texts = list(pool.map(_read, pipes))
    for process in processes:
        process.join()
    return [Completed(process.exitcode, *texts[2 * i : 2 * i + 2]) for i, process in enumerate(processes)]


class Started:
    """A running program with the interface of `subprocess.Popen`; it has the current environment."""

    def __init__(self, function: Callable[..., int], *arguments: Any):
        readers, writers = zip(*(CONTEXT.Pipe(duplex=False) for _ in range(2)), strict=True)
        call = (in_environment, (dict(os.environ), function, *arguments), *writers)
        self._process = CONTEXT.Process(target=_run_child, args=call)
        self._process.start()
        for writer in writers:
            writer.close()
        self.stdout, self.stderr = map(_as_file, readers)
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"process {self.pid} has not ended after {seconds} s"
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def hide(*modules: str) -> None:
    """Make these modules unavailable, as if they were not installed."""
    for name in modules:
        assert name not in sys.modules, f"{name} is imported by modules that do not need it"
        sys.modules[name] = None  # type: ignore[assignment]


def in_environment(environment: dict[str, str], function: Callable[..., int], *arguments: Any) -> int:
    """Call the function with these environment variables only."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # read TMPDIR again
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore Ctrl-C
    return function(*arguments)


def offramp(arguments: list[str], before: Callable[..., None] | None = None, *before_args: Any) -> int:
    """Run the command line, after calling `before(*before_args)`."""
    from offramp.cli.main import main

    if before is not None:
        before(*before_args)
    return main([str(argument) for argument in arguments])


def interpreter(arguments: list[str], before: Callable[..., None] | None = None, *before_args: Any) -> int:
    """Run the command line as `offramp` does, and end as the interpreter does, which flushes standard output."""
    sys.stdout = os.fdopen(1, "w", closefd=False)  # buffered, which the server's may not be
    code = offramp(arguments, before, *before_args)
    ctypes.pythonapi.Py_Exit(ctypes.c_int(code))
    raise AssertionError("the process has ended")


def _run_child(function: Callable[..., int], arguments: list[Any], stdout: Connection, stderr: Connection) -> None:
    gc.freeze()
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    stdout.close()
    stderr.close()
    sys.exit(function(*arguments))


def _read(connection: Connection) -> str:
    with _as_file(connection) as file:
        return file.read()


def _as_file(connection: Connection) -> TextIO:
    descriptor = os.dup(connection.fileno())
    connection.close()
    return os.fdopen(descriptor, encoding="utf-8")
