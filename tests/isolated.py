"""Run a function in a forked process that may crash, use up its memory or hang, without import time."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pickle
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIBRARIES = (  # imported lazily by the commands
    "datasets",
    "matplotlib.pyplot",
    "pyarrow.parquet",
    "scipy.stats",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
    "yaml",
    "offramp.calibration.run",
    "offramp.originals.convert",
    "offramp.evaluation.compare",
    "offramp.originals.submissions.submit",
    "offramp.training.seeds",
)
DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2  # capabilities that let root read and write everything
VERSION_3 = 0x20080522  # of the capability structures


@dataclass(frozen=True)
class IsolatedResult:
    """The function's return value, or why its process failed."""

    value: Any = None
    failure: str = ""


def prepare() -> None:
    """Import the libraries once, and exclude their objects from garbage collection."""
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def run_isolated(function: Callable[..., Any], *args: Any, seconds: float, memory: int) -> IsolatedResult:
    """Run the function in a fork that may allocate `memory` more bytes and is killed after `seconds`."""
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _run_child(function, args, write_end, memory)
    os.close(write_end)
    content, timed_out = _read(read_end, time.monotonic() + seconds)
    if timed_out:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if timed_out:
        return IsolatedResult(failure=f"killed after {seconds:g} s")
    if os.WIFSIGNALED(status):
        return IsolatedResult(failure=f"died of {signal.Signals(os.WTERMSIG(status)).name}")
    if not content:
        return IsolatedResult(failure=f"exited with code {os.WEXITSTATUS(status)}")
    return IsolatedResult(pickle.loads(content))


def _run_child(function: Callable[..., Any], args: tuple[Any, ...], write_end: int, memory: int) -> None:
    """Run the function in the child, send its result and exit."""
    code = 1
    try:
        limit = _address_space() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        drop_root_capabilities()
        content = pickle.dumps(function(*args))
        with os.fdopen(write_end, "wb") as file:
            file.write(content)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _read(read_end: int, deadline: float) -> tuple[bytes, bool]:
    """Return what the child sent, and whether it timed out."""
    chunks: list[bytes] = []
    with os.fdopen(read_end, "rb", buffering=0) as file:
        while select.select([file], [], [], max(0.0, deadline - time.monotonic()))[0]:
            chunk = file.read(1 << 16)
            if not chunk:
                return b"".join(chunks), False
            chunks.append(chunk)
    return b"", True


def _address_space() -> int:
    """Return the size of this process's address space in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def drop_root_capabilities() -> None:
    """Make file permissions apply to root, too."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    sets[0] &= ~(1 << DAC_OVERRIDE | 1 << DAC_READ_SEARCH)  # the effective set
    libc.capset(header, sets)
