"""A lock file next to the output folder: one run at a time. The system releases it when the process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from offramp.errors import CannotWrite
from offramp.files.writing import writing

__all__ = ["lock_folder"]


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; raise if another run holds it. With several processes, the main one takes it."""
    processes = PartialState()
    descriptor, error = _acquire(folder) if processes.is_main_process else (None, None)
    if processes.num_processes > 1:
        error = broadcast_object_list([error])[0]
    if error is not None:
        raise CannotWrite(error)
    try:
        yield
    finally:
        if descriptor is not None:
            _lock_file(folder).unlink(missing_ok=True)
            os.close(descriptor)


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _acquire(folder: Path) -> tuple[int | None, str | None]:
    """Return the file descriptor of the lock, or an error message."""
    import fcntl  # does not exist on Windows, where training is untested

    file = _lock_file(folder)
    while True:
        try:
            with writing(file):
                descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except CannotWrite as err:
            return None, str(err)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = f"Process {owner}" if (owner := os.read(descriptor, 100).decode()) else "Another process"
            os.close(descriptor)
            return None, f"{owner} is training into {folder}; wait until it ends, or choose another folder."
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # the owner has just removed the file
    os.truncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor, None
