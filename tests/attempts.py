"""Run an offramp command in this process, check how it ended, and find what it changed on disk."""

from __future__ import annotations

import hashlib
import io
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from offramp.cli.main import main as offramp

PANIC = "panicked at"  # printed by the tokenizers library, with its own stack, before it raises
NOTES = (  # log lines that may precede the error line
    "does not say what it was trained on",
    "the guarantee does not hold here",
    "was truncated",
    "longer than",
    "rows used",
    ": skipped ",
    "is treated as",
    "was fine-tuned on unknown rows",
    "has no native",
    "The old model stays in",
    "All rows were used in earlier training",
    "Resuming from",
)
OFFRAMP_LINE = re.compile(r"offramp( [a-z]+)?: .")  # argparse adds the command
SOURCE = f"{os.sep}offramp{os.sep}"


class TooLong(BaseException):
    """A call that did not end; a BaseException, so that no command catches it."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended."""

    code: Any
    out: str
    err: str
    trace: str = ""  # an uncaught exception: its type, message and innermost line
    frames: str = ""  # its last stack frames
    where: str = ""  # its type and innermost lines; equal for similar errors

    def faults(self, codes: tuple[int, ...] = (0, 2), has_progress: bool = False, streams: bool = False) -> list[str]:
        """Return what is wrong; a command that streams may print results before a row that cannot be read."""
        faults = [self.trace] if self.trace else []
        lines = self.err.splitlines()[-1:] if PANIC in self.err else self.err.splitlines()
        foreign = [line for line in lines if not OFFRAMP_LINE.match(line)]
        if not self.trace and self.code not in codes:
            faults.append(f"code {self.code}")
        if foreign and not (has_progress and self.code == 0):
            faults.append(f"a line that is not from offramp: {foreign[0]:.200}")
        results = [line for line in self.out.splitlines() if not any(note in line for note in NOTES)]
        if self.code == 2 and ((results and not streams) or not self.err):
            faults.append("a failure that prints a result, or nothing")
        errors = [line for line in lines if not any(note in line for note in NOTES)]
        if self.code == 2 and len(errors) > 1:
            faults.append(f"more than one line: {self.err:.300}")
        return faults


@contextmanager
def ends_within(seconds: int) -> Iterator[None]:
    """Raise `TooLong` after that time."""

    def stop(*_: Any) -> None:
        raise TooLong(f"it ran longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# -- standard input, output and error ------------------------------------------------------------


def _output(kind: str) -> TextIO | None:
    """Return standard output as a shell may set it up: captured, a full disk, an unread pipe, or closed."""
    if kind == "full":
        return Path("/dev/full").open("w", encoding="utf-8")
    if kind == "closed":
        return None
    if kind == "unread":
        reading, writing = os.pipe()
        os.close(reading)
        return os.fdopen(writing, "w", encoding="utf-8")
    encoding = "latin-1" if kind == "latin-1" else "utf-8"
    return io.TextIOWrapper(tempfile.TemporaryFile(), encoding=encoding, errors="strict")


def _input(content: bytes | None) -> TextIO | None:
    return None if content is None else io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")


@contextmanager
def streams(stdin: bytes | None, stdout: str) -> Iterator[tuple[TextIO | None, TextIO]]:
    """Replace the standard streams; also captures what libraries write to file descriptor 2."""
    before, stderr_copy = (sys.stdin, sys.stdout, sys.stderr), os.dup(2)
    out = _output(stdout)
    err = io.TextIOWrapper(tempfile.TemporaryFile(), encoding="utf-8", errors="backslashreplace", line_buffering=True)  # noqa: SIM115
    os.dup2(err.fileno(), 2)
    sys.stdin, sys.stdout, sys.stderr = _input(stdin), out, err  # type: ignore[assignment]
    try:
        yield out, err
    finally:
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)
        sys.stdin, sys.stdout, sys.stderr = before


def attempt(arguments: list[str], *, stdin: bytes | None = b"", stdout: str = "captured", seconds: int = 60) -> Outcome:
    """Run a command as a shell would; `stdin=None` is closed."""
    code, bug = None, None
    with streams(stdin, stdout) as (out, err):
        try:
            with ends_within(seconds):
                code = offramp(arguments)
        except SystemExit as stop:
            code = stop.code
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # a panic in a Rust library is not an Exception
            bug = raised
        try:
            if out is not None:
                out.flush()  # as the interpreter does at exit
        except OSError as raised:
            bug = bug or raised
    texts = [_read(out) if stdout in ("captured", "latin-1") else "", _read(err)]
    _close(out)
    return Outcome(code, *texts, *(("", "", "") if bug is None else _summarize(bug)))


def _read(file: Any) -> str:
    file.flush()
    file.buffer.seek(0)
    return str(file.buffer.read().decode(file.encoding, "replace"))


def _close(file: TextIO | None) -> None:
    try:
        if file is not None:
            file.close()
    except OSError:
        pass


def _summarize(bug: BaseException) -> tuple[str, str, str]:
    """Return an exception in one line, its last frames, and a key that is equal for similar exceptions."""
    trace: TracebackType | None = bug.__traceback__
    stack = traceback.extract_tb(trace)
    last = stack[-1]
    inner = next((frame for frame in reversed(stack) if SOURCE in frame.filename), last)
    message = f"{type(bug).__name__}: {' '.join(str(bug).split()):.160}"
    at = f"{Path(inner.filename).name}:{inner.lineno} {inner.name}, {Path(last.filename).name} {last.name}"
    frames = "".join(traceback.format_list(stack[-4:])) + message
    return f"{message} ({last.filename}:{last.lineno})", frames, f"{type(bug).__name__} at {at}"


# -- changes on disk -----------------------------------------------------------------------------


def snapshot(root: Path) -> dict[str, str]:
    """Return type, mode and content hash of everything in a folder; links are not followed."""
    states = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder) / name
            states[str(path.relative_to(root))] = _state(path)
    return states


def _state(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    info = path.lstat()
    if path.is_dir():
        return f"folder {info.st_mode:o}"
    if not path.is_file():
        return f"special {info.st_mode:o}"
    try:
        return f"{info.st_mode:o} {hashlib.sha1(path.read_bytes()).hexdigest()}"
    except PermissionError:
        return f"{info.st_mode:o} {info.st_size} {info.st_mtime_ns}"
