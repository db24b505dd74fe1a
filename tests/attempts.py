"""Run a command of ours in this process, judge how it ended, and see what it touched."""

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

PANIC = "panicked at"  # what the tokenizers' library prints, with a stack of its own, before it raises
NOTES = (  # what may stand above the line that says why a call failed
    "does not say what it was trained on",
    "what was promised of it does not hold here",
    "it was cut there",
    "texts were longer than",
    "rows used",
    "were skipped, the first",
    "is taken for",
    "was fine-tuned on rows",
    "has no instructions for",
    "The old model is in",
    "Every row was trained on before",
    "Going on from",
)
OURS = re.compile(r"offramp( [a-z]+)?: .")  # argparse names the command, too
SOURCE = f"{os.sep}offramp{os.sep}"


class TooLong(BaseException):
    """A call that did not end; nobody may take it for an error of a file."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended."""

    code: Any
    out: str
    err: str
    trace: str = ""  # of an error that nobody caught: its kind, what it says, its innermost line
    frames: str = ""  # the last of its stack
    where: str = ""  # its kind and its innermost lines, ours and whose it is: alike for alike errors

    def faults(self, codes: tuple[int, ...] = (0, 2), tells_progress: bool = False, streams: bool = False) -> list[str]:
        """What is wrong with that ending; whoever streams may have answered before a row that cannot be read."""
        found = [self.trace] if self.trace else []
        lines = self.err.splitlines()[-1:] if PANIC in self.err else self.err.splitlines()
        strange = [line for line in lines if not OURS.match(line)]
        if not self.trace and self.code not in codes:
            found.append(f"code {self.code}")
        if strange and not (tells_progress and self.code == 0):
            found.append(f"a line that is not ours: {strange[0]:.200}")
        if self.code == 2 and ((self.out and not streams) or not self.err):
            found.append("a failure that prints a result, or nothing")
        errors = [line for line in lines if not any(note in line for note in NOTES)]
        if self.code == 2 and len(errors) > 1:
            found.append(f"more than one line: {self.err:.300}")
        return found


@contextmanager
def ends_within(seconds: int) -> Iterator[None]:
    """Stop what takes longer."""

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
    """Standard output as a shell may give it: kept here, on a full disk, a pipe that nobody reads, closed."""
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
    """Others in the place of the standard streams; what libraries write past Python is kept, too."""
    before, kept = (sys.stdin, sys.stdout, sys.stderr), os.dup(2)
    out = _output(stdout)
    err = io.TextIOWrapper(tempfile.TemporaryFile(), encoding="utf-8", errors="backslashreplace", line_buffering=True)  # noqa: SIM115
    os.dup2(err.fileno(), 2)
    sys.stdin, sys.stdout, sys.stderr = _input(stdin), out, err  # type: ignore[assignment]
    try:
        yield out, err
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        sys.stdin, sys.stdout, sys.stderr = before


def attempt(arguments: list[str], *, stdin: bytes | None = b"", stdout: str = "kept", seconds: int = 60) -> Outcome:
    """Run a command as a shell would; `stdin` None is a closed one."""
    code, bug = None, None
    with streams(stdin, stdout) as (out, err):
        try:
            with ends_within(seconds):
                code = offramp(arguments)
        except SystemExit as stop:
            code = stop.code
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # a library in Rust raises no Exception when it gives up
            bug = raised
        try:
            if out is not None:
                out.flush()  # as the interpreter does in the end
        except OSError as raised:
            bug = bug or raised
    texts = [_kept(out) if stdout in ("kept", "latin-1") else "", _kept(err)]
    _close(out)
    return Outcome(code, *texts, *(("", "", "") if bug is None else _told(bug)))


def _kept(file: Any) -> str:
    file.flush()
    file.buffer.seek(0)
    return str(file.buffer.read().decode(file.encoding, "replace"))


def _close(file: TextIO | None) -> None:
    try:
        if file is not None:
            file.close()
    except OSError:
        pass


def _told(bug: BaseException) -> tuple[str, str, str]:
    """An error in one line, its last frames, and what alike errors have in common."""
    found: TracebackType | None = bug.__traceback__
    stack = traceback.extract_tb(found)
    last = stack[-1]
    ours = next((frame for frame in reversed(stack) if SOURCE in frame.filename), last)
    said = f"{type(bug).__name__}: {' '.join(str(bug).split()):.160}"
    at = f"{Path(ours.filename).name}:{ours.lineno} {ours.name}, {Path(last.filename).name} {last.name}"
    frames = "".join(traceback.format_list(stack[-4:])) + said
    return f"{said} ({last.filename}:{last.lineno})", frames, f"{type(bug).__name__} at {at}"


# -- what it touched -----------------------------------------------------------------------------


def seen(root: Path) -> dict[str, str]:
    """Everything under a folder: what it is, who may read it, and what it holds; links are not followed."""
    found = {}
    for place, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(place) / name
            found[str(path.relative_to(root))] = _state(path)
    return found


def _state(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    about = path.lstat()
    if path.is_dir():
        return f"folder {about.st_mode:o}"
    if not path.is_file():
        return f"special {about.st_mode:o}"
    try:
        return f"{about.st_mode:o} {hashlib.sha1(path.read_bytes()).hexdigest()}"
    except PermissionError:
        return f"{about.st_mode:o} {about.st_size} {about.st_mtime_ns}"
