"""The lock of an output folder in a run with one or several processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from offramp.errors import CannotWrite
from offramp.files.lock import acquire_lock, release_lock

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
            release_lock(folder, descriptor)


def _acquire(folder: Path) -> tuple[int | None, str | None]:
    """Return the file descriptor of the lock, or an error message for all processes."""
    try:
        return acquire_lock(folder), None
    except CannotWrite as err:
        return None, str(err)
