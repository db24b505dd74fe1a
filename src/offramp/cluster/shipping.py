"""Send a model folder to the machines of a cluster through Ray's object store, so that they need no shared disk.

The workers of a machine share one copy in its temporary folder. It exists while workers load the model. Locks show who
uses it: the system releases them when a process ends or is killed, so the copies of killed workers can be removed.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offramp.errors import BadModel
from offramp.files.storage import accessing, file_system, is_url, list_files
from offramp.files.writing import writing

__all__ = ["ShippedModel", "local_model", "remove_copy", "remove_unused_copies", "ship", "unpacked"]

# files of a model folder that are not read when the model is loaded
NOT_SHIPPED = re.compile(r"(checkpoints|logs|seed-\d+)/.*|(rows|trace)\.safetensors|report\.html|(.*/)?\..*")
CHUNK_BYTES = 64 * 2**20  # of an object in Ray's store
PREFIX = ".offramp-model-"
COPY = re.compile(re.escape(PREFIX) + r"[0-9a-f]{32}")  # the name of a copy
COMPLETE, INCOMPLETE = "model", "incomplete"  # all that a copy's folder contains
SECONDS_TO_END = 10  # for a worker that is still loading the model when the job ends


@dataclass(frozen=True)
class ShippedModel:
    """A model folder in Ray's object store."""

    name: str  # of the folder, for messages
    key: str
    files: tuple[tuple[str, tuple[Any, ...]], ...]  # name and chunks of each file


@contextmanager
def local_model(model: str) -> Iterator[str]:
    """Yield the folder of a model, downloaded if it is on object storage; other names are yielded unchanged."""
    if not is_url(model):
        yield str(Path(model).resolve()) if Path(model).is_dir() else model
        return
    names = [name for name in list_files(model) if not NOT_SHIPPED.fullmatch(name)]
    if not names:
        raise BadModel(f"{model} contains no model.")
    system, path = file_system(model)

    def download(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with accessing(f"{model}/{name}", BadModel):
                system.get_file(f"{path}/{name}", str(folder / name))

    with _shared_copy(uuid.uuid4().hex, download) as folder:
        yield str(folder)


def ship(ray: Any, folder: str, name: str) -> ShippedModel:
    """Put the files of a model folder into the object store."""
    files = []
    for file in list_files(folder):
        if not NOT_SHIPPED.fullmatch(file):
            files.append((file, tuple(ray.put(chunk) for chunk in _chunks(Path(folder) / file))))
    return ShippedModel(name, uuid.uuid4().hex, tuple(files))


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            yield chunk


@contextmanager
def unpacked(model: ShippedModel) -> Iterator[str]:
    """Yield a folder with the model's files, which may be removed afterwards: load the model inside."""
    import ray

    remove_unused_copies()

    def unpack(folder: Path) -> None:
        for name, chunks in model.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (folder / name).open("wb") as file:
                for chunk in chunks:
                    file.write(ray.get(chunk))

    with _shared_copy(model.key, unpack) as folder:
        yield str(folder)


def _root(key: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{PREFIX}{key}"


@contextmanager
def _shared_copy(key: str, fill: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a folder that one process of this machine fills and all with the same key use; the last one removes it."""
    root = _root(key)
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows has no such locks: a copy for each process
        with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
            fill(Path(name))
            yield Path(name)
        return
    while True:
        with _locked(root, fcntl.LOCK_EX) as lock:
            if lock is not None and not (root / COMPLETE).is_dir():
                _fill(root, fill)
        with _locked(root, fcntl.LOCK_SH) as lock:
            if lock is None or not (root / COMPLETE).is_dir():
                continue  # removed in between by the last process that used it
            try:
                yield root / COMPLETE
                return
            finally:
                with suppress(BlockingIOError):  # another process uses it, and removes it afterwards
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _delete(root)


def _fill(root: Path, fill: Callable[[Path], None]) -> None:
    incomplete = root / INCOMPLETE
    shutil.rmtree(incomplete, ignore_errors=True)  # of a process that was killed
    with writing(root):
        try:
            incomplete.mkdir()
            fill(incomplete)
            incomplete.replace(root / COMPLETE)
        except BaseException:
            _delete(root)
            raise


def _delete(root: Path) -> None:
    """Delete a copy, unless its folder contains anything else."""
    with suppress(OSError):  # removed by another process
        if {path.name for path in root.iterdir()} <= {COMPLETE, INCOMPLETE}:
            shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _locked(root: Path, mode: int) -> Iterator[int | None]:
    """Lock a folder, created if it does not exist; None if it was removed while waiting."""
    import fcntl

    with writing(root):
        root.mkdir(mode=0o700, exist_ok=True)
    try:
        lock = os.open(root, os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(lock, mode)
        yield lock if _is_same_folder(root, lock) else None
    finally:
        os.close(lock)


def _is_same_folder(root: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), root.stat())
    except FileNotFoundError:
        return False


def remove_copy(model: ShippedModel) -> None:
    """Remove the copy on this machine when its last user has ended: Ray kills workers only after a job has ended."""
    root, deadline = _root(model.key), time.monotonic() + SECONDS_TO_END
    while root.exists() and not _removed(root) and time.monotonic() < deadline:
        time.sleep(0.05)


def remove_unused_copies() -> None:
    """Remove the copies that killed processes of other jobs left in the temporary folder of this machine."""
    for root in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if COPY.fullmatch(root.name) and root.is_dir() and not root.is_symlink():
            _removed(root)


def _removed(root: Path) -> bool:
    """Remove a copy if no process uses it; return False if one does."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return False
    try:
        lock = os.open(root, os.O_RDONLY)
    except OSError:  # removed by another process, or of another user
        return not root.exists()
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _delete(root)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
