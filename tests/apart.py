"""Work in a process of its own, forked from this one: it may crash, take all memory, never end; it starts at once."""

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

LIBRARIES = (  # what commands import only when they run
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
DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2  # what lets the superuser read and write everything
VERSION_3 = 0x20080522


@dataclass(frozen=True)
class Ended:
    """What work gave, or what became of its process."""

    gave: Any = None
    fate: str = ""


def prepare() -> None:
    """Load the libraries once; what is loaded now stays and need not be walked by collections."""
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def apart(work: Callable[..., Any], *given: Any, seconds: float, memory: int) -> Ended:
    """Do the work in a fork that may take so many bytes more, and is killed after so many seconds."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _begin(work, given, writing, memory)
    os.close(writing)
    content, late = _read(reading, time.monotonic() + seconds)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return Ended(fate=f"it ran longer than {seconds:g} s and had to be killed")
    if os.WIFSIGNALED(status):
        return Ended(fate=f"it died of {signal.Signals(os.WTERMSIG(status)).name}")
    return Ended(pickle.loads(content)) if content else Ended(fate=f"it ended with code {os.WEXITSTATUS(status)}")


def _begin(work: Callable[..., Any], given: tuple[Any, ...], writing: int, memory: int) -> None:
    """The child's whole life."""
    code = 1
    try:
        most = _taken() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        like_others()
        content = pickle.dumps(work(*given))
        with os.fdopen(writing, "wb") as file:
            file.write(content)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _read(reading: int, until: float) -> tuple[bytes, bool]:
    """What the child gave, and whether it was too late."""
    parts: list[bytes] = []
    with os.fdopen(reading, "rb", buffering=0) as file:
        while select.select([file], [], [], max(0.0, until - time.monotonic()))[0]:
            part = file.read(1 << 16)
            if not part:
                return b"".join(parts), False
            parts.append(part)
    return b"", True


def _taken() -> int:
    """The address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def like_others() -> None:
    """Let rights count for the superuser too, so that what is not to be read or written is not."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    sets[0] &= ~(1 << DAC_OVERRIDE | 1 << DAC_READ_SEARCH)  # of the effective ones
    libc.capset(header, sets)
