"""A lock file next to an output folder or file: one run at a time. The system releases it when the process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offramp.errors import CannotWrite
from offramp.files.writing import writing

__all__ = ["acquire_lock", "locked", "release_lock"]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of an output folder; raise if another process holds it."""
    descriptor = acquire_lock(folder)
    try:
        yield
    finally:
        release_lock(folder, descriptor)


def acquire_lock(folder: Path, advice: str = "wait until it ends, or choose another folder") -> int | None:
    """Return the file descriptor of the lock; raise `CannotWrite` with the advice if another process holds it.

    Windows has no such locks: there it is None, and a second run is not refused.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        return None
    file = _lock_file(folder)
    while True:
        with writing(file):
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with writing(file):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except CannotWrite as err:
            if not isinstance(err.__cause__, BlockingIOError):
                os.close(descriptor)
                raise
            owner = f"Process {owner}" if (owner := os.read(descriptor, 100).decode()) else "Another process"
            os.close(descriptor)
            message = f"{owner} is writing {folder}; {advice}."
            raise CannotWrite(message) from err
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # the owner has just removed the file
    os.truncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def release_lock(folder: Path, descriptor: int | None) -> None:
    """Remove the lock file."""
    if descriptor is None:
        return
    _lock_file(folder).unlink(missing_ok=True)
    os.close(descriptor)


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")
