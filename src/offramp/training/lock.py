"""One run at a time in an output folder: a lock beside it, which the system lets go of when its process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from offramp.errors import CannotWrite
from offramp.files.writing import writing

__all__ = ["only_run_in"]


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; a second run is refused and told who holds it. Of several processes the first asks."""
    processes = PartialState()
    held, refusal = _take(folder) if processes.is_main_process else (None, None)
    if processes.num_processes > 1:
        refusal = broadcast_object_list([refusal])[0]
    if refusal is not None:
        raise CannotWrite(refusal)
    try:
        yield
    finally:
        if held is not None:
            _file(folder).unlink(missing_ok=True)
            os.close(held)


def _file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _take(folder: Path) -> tuple[int | None, str | None]:
    """The lock, or why it cannot be had."""
    import fcntl  # not on Windows, where training was never tried

    file = _file(folder)
    while True:
        try:
            with writing(file):
                held = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except CannotWrite as err:
            return None, str(err)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(held, 100).decode() or "another one"
            os.close(held)
            return (
                None,
                f"Process {owner} is training into {folder} at this moment; wait for it, or name another folder.",
            )
        if os.fstat(held).st_nlink:
            break
        os.close(held)  # its owner has just removed it
    os.truncate(held, 0)
    os.write(held, str(os.getpid()).encode())
    return held, None
