"""What a batch job is: the model, how it answers, which files; kept beside the answers, so that it can go on later."""

from __future__ import annotations

import glob
import json
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from offramp.errors import BadInput, CannotWrite
from offramp.files.managed_files import check_managed
from offramp.files.writing import staged_file, writing

__all__ = ["JOB", "Job", "answered", "begin", "files_of", "part_file", "stamped", "tidy", "token_of"]

JOB = "_job.json"  # readers of Parquet folders pass over what begins with _ or .
OURS = re.compile(rf"{re.escape(JOB)}|part-\d+\.parquet|\.part-\d+\.[0-9a-f]{32}|\._job\.json\..*\.part")


@dataclass(frozen=True)
class Job:
    """Everything that the answers depend on, and how they are cut into files."""

    fingerprint: str  # of the model, its backend and dtype
    policy: str
    max_layers: int | None
    id_column: str | None
    text_columns: tuple[str | None, str | None]
    all_scores: bool
    format: str
    has_header: bool
    rows: int  # of a part
    files: tuple[tuple[str, int, int], ...]  # name, bytes, when it was changed last


OTHERWISE = {  # what to say where a job differs from the one whose answers are there
    "fingerprint": "another model, backend or dtype",
    "policy": "another policy",
    "max_layers": "another `max_layers=`",
    "id_column": "another id column",
    "text_columns": "other columns",
    "all_scores": "`all_scores=` or not",
    "format": "another format",
    "has_header": "with or without `header=False`",
    "rows": "another `chunk=`",
    "files": "other input files, or they were changed",
}


def files_of(patterns: Sequence[str]) -> list[str]:
    """The files that patterns such as data/*.parquet name, each once, in order of their names."""
    found: set[str] = set()
    for pattern in patterns:
        if pattern == "-":
            raise BadInput("A job on Ray reads files, not standard input; name them.")
        there = [pattern] if Path(pattern).is_file() else glob.glob(pattern, recursive=True)  # noqa: PTH207
        some = {os.path.abspath(file) for file in there if Path(file).is_file()}  # noqa: PTH100
        if not some:
            hint = f" It is a folder; '{pattern.rstrip('/')}/*.parquet' names what is in it." if there else ""
            raise BadInput(f"There is no file {pattern}.{hint}")
        found |= some
    return sorted(found)


def stamped(files: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    """Files and what tells whether they were changed."""
    told = [(file, Path(file).stat()) for file in files]
    return tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in told)


def begin(folder: Path, job: Job, overwrite: bool) -> str:
    """Make the folder of a job, or see that the one which is there is this job's; the token that its workers show."""
    if folder.exists() and not folder.is_dir():
        raise CannotWrite(f"{folder} is a file; a job on Ray writes a folder.")
    is_job = (folder / JOB).is_file()
    if is_job and not overwrite:
        return _check_same(folder, job)
    if not is_job and folder.is_dir() and any(folder.iterdir()):
        raise CannotWrite(f"{folder} holds something else than a job's answers; name another folder.")
    token = uuid.uuid4().hex
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        check_managed(folder, OURS, "answers of a job")
        with staged_file(folder / JOB, overwrite=True) as file:  # first: whoever still works for the old job stops
            file.write(json.dumps(asdict(job) | {"token": token}, indent=1) + "\n")
        for old in folder.iterdir():
            if old.name != JOB:
                old.unlink()
    return token


def token_of(folder: Path) -> str | None:
    """Whose folder it is by now."""
    try:
        return str(json.loads((folder / JOB).read_text("utf-8"))["token"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def tidy(folder: Path) -> None:
    """Remove what workers left that were killed, once every part is there."""
    for left in folder.glob(".part-*"):
        if OURS.fullmatch(left.name):
            left.unlink(missing_ok=True)


def _check_same(folder: Path, job: Job) -> str:
    try:
        kept: dict[str, Any] = json.loads((folder / JOB).read_text("utf-8"))
    except (OSError, ValueError) as err:
        raise BadInput(f"{folder / JOB} cannot be read ({err}); name another folder.") from err
    now = json.loads(json.dumps(asdict(job)))
    for field in fields(Job):
        if not isinstance(kept, dict) or kept.get(field.name) != now[field.name]:
            raise CannotWrite(
                f"{folder} holds the answers of another job ({OTHERWISE[field.name]}); "
                "name another folder, or give `overwrite=True` to begin anew."
            )
    return str(kept.get("token"))


def part_file(folder: Path, number: int) -> Path:
    """Where a part's answers are."""
    return folder / f"part-{number:06d}.parquet"


def answered(folder: Path) -> Iterator[int]:
    """The parts whose answers are there: a file has its name only when it is complete."""
    for file in folder.glob("part-*.parquet"):
        if OURS.fullmatch(file.name):
            yield int(file.stem.removeprefix("part-"))
