"""Write beside the final name, then move into place: nothing half-written is left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from offramp.errors import CannotWrite

__all__ = ["check_free", "staged_file", "staged_folder", "writing"]


def check_free(target: Path, overwrite: bool) -> None:
    """Refuse a target that exists, unless it may be overwritten, or whose folder does not exist."""
    if target.exists() and not overwrite:
        raise CannotWrite(f"{target} exists already; give --overwrite to replace it.")
    if not target.absolute().parent.is_dir():
        raise CannotWrite(f"Cannot write {target}: there is no folder {target.absolute().parent}.")


@contextmanager
def writing(target: Path | str) -> Iterator[None]:
    """Name the target when the system cannot write it (a full disk, a missing right)."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as err:
        if isinstance(err, CannotWrite) or err.errno is None:
            raise
        raise CannotWrite(f"Cannot write {target}: {err.strerror}.") from err


@contextmanager
def staged_file(target: Path, overwrite: bool = False) -> Iterator[TextIO]:
    """A text file that appears under its name only when it is complete."""
    check_free(target, overwrite)
    if target.is_dir():
        raise CannotWrite(f"{target} is a folder; name a file.")
    with writing(target):
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.absolute().parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            yield file
            with writing(target):
                file.flush()
        part.chmod(0o666 & ~_umask())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def staged_folder(target: Path, overwrite: bool = False) -> Iterator[Path]:
    """A folder that appears under its name only when it is complete; an old one goes last."""
    check_free(target, overwrite)
    if target.is_file():
        raise CannotWrite(f"{target} is a file; name a folder.")
    with writing(target):
        stage = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.absolute().parent))
    try:
        with writing(target):
            new = stage / "new"
            new.mkdir()
            yield new
            if target.exists():
                target.replace(stage / "old")
            new.replace(target)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now
