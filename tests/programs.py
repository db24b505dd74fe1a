"""Programs in processes of their own, forked from one that has loaded the libraries: a start costs no imports.

Whoever needs a fresh interpreter (what an import loads, what is left to do at its end) starts one instead.
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
class Ended:
    """What is left of a program; a signal's number is a negative code, as in `subprocess`."""

    code: int
    stdout: str
    stderr: str


def run(*calls: tuple[Any, ...]) -> list[Ended]:
    """Run functions, each given with its arguments, side by side until all have ended; what they return is the code."""
    started, pipes = [], []
    for work, *arguments in calls:
        (told, stdout), (complained, stderr) = CONTEXT.Pipe(duplex=False), CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_begin, args=(work, arguments, stdout, stderr))
        process.start()
        stdout.close()
        stderr.close()
        started.append(process)
        pipes += [told, complained]
    with ThreadPoolExecutor(len(pipes)) as pool:
        texts = list(pool.map(_read, pipes))
    for process in started:
        process.join()
    return [Ended(process.exitcode, *texts[2 * i : 2 * i + 2]) for i, process in enumerate(started)]


def offramp(arguments: list[str], before: Callable[..., None] | None = None, *given: Any) -> int:
    """The command line, behind something that is done first."""
    from offramp.cli.main import main

    if before is not None:
        before(*given)
    return main([str(argument) for argument in arguments])


def _begin(work: Callable[..., int], arguments: list[Any], stdout: Connection, stderr: Connection) -> None:
    gc.freeze()
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    stdout.close()
    stderr.close()
    sys.exit(work(*arguments))


def _read(end: Connection) -> str:
    with open(end.fileno(), "rb", closefd=False) as file:
        text = file.read().decode()
    end.close()
    return text
