"""Write beside the final name, then move into place: nothing half-written is left behind."""

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

__all__ = ["apply_umask", "check_free", "staged_file", "staged_folder", "write_together", "writing"]


def check_free(target: Path, overwrite: bool) -> None:
    """Refuse a target that exists, unless it may be overwritten, or whose folder does not exist."""
    if (target.is_file() or target.is_dir()) and not overwrite:  # a pipe or a device is written as it is
        raise CannotWrite(f"{target} exists already; give `overwrite=True` to replace it.")
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
        elsewhere = isinstance(err.filename, str) and not Path(err.filename).absolute().is_relative_to(
            Path(target).absolute().parent.resolve()
        )
        if isinstance(err, CannotWrite) or err.errno is None or elsewhere:
            raise
        raise CannotWrite(f"Cannot write {target}: {err.strerror}.") from err
    except Exception as err:
        from safetensors import SafetensorError  # what its writer raises, for a full disk too

        # and what torch's writer raises
        torn = isinstance(err, RuntimeError) and ("PytorchStreamWriter" in str(err) or "inline_container" in str(err))
        if not isinstance(err, SafetensorError) and not torn:
            raise
        reason = str(err).splitlines()[0].rstrip(".")
        raise CannotWrite(f"Cannot write {target}: {reason}.") from err


@contextmanager
def staged_file(target: Path, overwrite: bool = False) -> Iterator[TextIO]:
    """A text file that appears under its name only when it is complete.

    A pipe or a device cannot be replaced and is written as it is; behind a link its target is.
    """
    check_free(target, overwrite)
    if target.is_dir():
        raise CannotWrite(f"{target} is a folder; name a file.")
    with writing(target):
        if target.exists() and not target.is_file():
            with target.open("w", encoding="utf-8", newline="") as file:
                yield file
            return
        final = target.resolve()
        handle, name = tempfile.mkstemp(prefix=f".{final.name}.", suffix=".part", dir=final.parent)
        part = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                yield file
            apply_umask(part)
            part.replace(final)
        finally:
            part.unlink(missing_ok=True)


def write_together(texts: Mapping[Path, str]) -> None:
    """Replace several files, all or none; the first one's new text appears last."""
    with ExitStack() as stack:
        for target, text in texts.items():
            file = stack.enter_context(staged_file(target, overwrite=True))
            file.write(text)
            file.flush()  # a full disk says so before the first file is replaced


@contextmanager
def staged_folder(
    target: Path, overwrite: bool = False, ours: re.Pattern[str] = MODEL, what: str = "a model"
) -> Iterator[Path]:
    """A folder that appears under its name only when it is complete; an old one, if all in it is ours, goes last."""
    check_free(target, overwrite)
    if str(target) == "-" or (target.exists() and not target.is_dir()):  # a device or a pipe is nobody's to replace
        raise CannotWrite(f"{target} is a file; name a folder.")
    check_managed(target, ours, what)
    with writing(target):
        final = target.resolve()
        stage = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".part", dir=final.parent))
        try:
            new = stage / "new"
            new.mkdir()
            yield new
            _swap(new, final, stage / "old")
        finally:
            if final.exists() or not (stage / "old").exists():  # else the old one is all that there is
                shutil.rmtree(stage, ignore_errors=True)


def _swap(new: Path, final: Path, old: Path) -> None:
    """Put the new folder in the old one's place; if that fails, the old one comes back."""
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
    """Let those read a file who may read others: temporary files and safetensors' are their owner's alone."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)
