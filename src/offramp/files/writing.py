"""Write to a temporary path, then move into place: no partial output is left behind."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from offramp.errors import CannotWrite
from offramp.files.managed_files import MODEL, check_managed
from offramp.files.storage import check_local

__all__ = [
    "apply_umask",
    "check_output_path",
    "replace_files",
    "staged_file",
    "staged_folder",
    "staged_path",
    "writing",
]


def check_output_path(target: Path, overwrite: bool) -> None:
    """Raise if the target exists and `overwrite` is not set, or if its parent folder does not exist."""
    check_local(target)
    if (target.is_file() or target.is_dir()) and not overwrite:  # pipes and devices are written directly
        raise CannotWrite(f"{target} already exists; use `overwrite=True` to replace it.")
    if not target.absolute().parent.is_dir():
        raise CannotWrite(f"Cannot write {target}: the folder {target.absolute().parent} does not exist.")


@contextmanager
def writing(target: Path | str) -> Iterator[None]:
    """Raise `CannotWrite` with the target when the system cannot write it (full disk, no permission)."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as err:
        is_other_file = isinstance(err.filename, str) and not Path(err.filename).absolute().is_relative_to(
            Path(target).absolute().parent.resolve()
        )
        if isinstance(err, CannotWrite) or err.errno is None or is_other_file:
            raise
        raise CannotWrite(f"Cannot write {target}: {err.strerror}.") from err
    except Exception as err:
        from safetensors import SafetensorError  # also raised by its writer when the disk is full

        is_torch_write_error = isinstance(err, RuntimeError) and (
            "PytorchStreamWriter" in str(err) or "inline_container" in str(err)
        )
        if not isinstance(err, SafetensorError) and not is_torch_write_error:
            raise
        reason = str(err).splitlines()[0].rstrip(".")
        raise CannotWrite(f"Cannot write {target}: {reason}.") from err


@contextmanager
def staged_path(target: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield the path of a file to write, which appears under its final name only when it is complete.

    Pipes and devices are written directly; symbolic links are followed.
    """
    check_output_path(target, overwrite)
    if target.is_dir():
        raise CannotWrite(f"{target} is a folder; pass a file path.")
    with writing(target):
        if target.exists() and not target.is_file():
            yield target
            return
        final = target.resolve()
        handle, name = tempfile.mkstemp(prefix=f".{final.name}.", suffix=".part", dir=final.parent)
        os.close(handle)
        part = Path(name)
        try:
            yield part
            apply_umask(part)
            part.replace(final)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def staged_file(target: Path, overwrite: bool = False) -> Iterator[TextIO]:
    """Yield a text file that appears under its final name only when it is complete."""
    with staged_path(target, overwrite) as path, path.open("w", encoding="utf-8", newline="") as file:
        yield file


def replace_files(texts: Mapping[Path, str]) -> None:
    """Write several files, all or none; the first one is replaced last."""
    with ExitStack() as stack:
        for target, text in texts.items():
            file = stack.enter_context(staged_file(target, overwrite=True))
            file.write(text)
            file.flush()  # a full disk raises before any file is replaced


@contextmanager
def staged_folder(
    target: Path, overwrite: bool = False, managed: re.Pattern[str] = MODEL, what: str = "a model"
) -> Iterator[Path]:
    """Yield a folder that appears under its final name only when it is complete.

    An existing folder is replaced at the end, and only if all its files match `managed`.
    """
    check_output_path(target, overwrite)
    if str(target) == "-" or (target.exists() and not target.is_dir()):  # never replace a device or a pipe
        raise CannotWrite(f"{target} is a file; pass a folder.")
    check_managed(target, managed, what)
    with writing(target):
        final = target.resolve()
        stage = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".part", dir=final.parent))
        try:
            new = stage / "new"
            new.mkdir()
            yield new
            _swap(new, final, stage / "old")
        finally:
            if final.exists() or not (stage / "old").exists():  # otherwise the old folder is the only copy
                shutil.rmtree(stage, ignore_errors=True)


def _swap(new: Path, final: Path, old: Path) -> None:
    """Replace the old folder by the new one; on failure, restore the old one."""
    if not final.exists():
        new.replace(final)
        return
    final.replace(old)
    try:
        new.replace(final)
    except OSError:
        old.replace(final)
        raise


def apply_umask(file: Path) -> None:
    """Set the usual permissions: temporary files and safetensors files are readable only by their owner."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)
