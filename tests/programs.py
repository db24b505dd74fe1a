"""Programs in separate processes, forked from a server that has imported the libraries, so they start fast.

Tests that need a fresh interpreter (about imports or shutdown) start one themselves.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "offramp.training.run",
        "offramp.originals.convert",
        "offramp.runtimes.loading",
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


def offramp(arguments: list[str], before: Callable[..., None] | None = None, *before_args: Any) -> int:
    """Run the command line, after calling `before(*before_args)`."""
    from offramp.cli.main import main

    if before is not None:
        before(*before_args)
    return main([str(argument) for argument in arguments])


def _run_child(function: Callable[..., int], arguments: list[Any], stdout: Connection, stderr: Connection) -> None:
    gc.freeze()
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    stdout.close()
    stderr.close()
    sys.exit(function(*arguments))


def _read(connection: Connection) -> str:
    with open(connection.fileno(), "rb", closefd=False) as file:
        text = file.read().decode()
    connection.close()
    return text
