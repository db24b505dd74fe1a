"""The description of a batch job, stored beside its predictions so that the job can be resumed."""

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

from offramp.data.source import data_files
from offramp.errors import BadInput, CannotWrite
from offramp.files.managed_files import check_managed
from offramp.files.writing import staged_file, writing

__all__ = [
    "JOB_FILE",
    "Job",
    "expand_patterns",
    "file_stamps",
    "finished_parts",
    "part_file",
    "read_token",
    "remove_leftovers",
    "start_job",
]

JOB_FILE = "_job.json"  # Parquet readers skip files whose names start with _ or .
MANAGED = re.compile(rf"{re.escape(JOB_FILE)}|part-\d+\.parquet|\.part-\d+\.[0-9a-f]{{32}}|\._job\.json\..*\.part")


@dataclass(frozen=True)
class Job:
    """Everything that the predictions and their files depend on."""

    fingerprint: str  # of the model, its backend and dtype
    policy: str
    max_layers: int | None
    id_column: str | None
    text_columns: tuple[str | None, str | None]
    all_scores: bool
    format: str
    has_header: bool
    rows: int  # per part
    files: tuple[tuple[str, int, int], ...]  # name, bytes, modification time


DIFFERENCES = {  # how an error names the field in which two jobs differ
    "fingerprint": "different model, backend or dtype",
    "policy": "different policy",
    "max_layers": "different `max_layers=`",
    "id_column": "different id column",
    "text_columns": "different text columns",
    "all_scores": "different `all_scores=`",
    "format": "different format",
    "has_header": "different `header=`",
    "rows": "different `chunk=`",
    "files": "different or modified input files",
}


def expand_patterns(patterns: Sequence[str]) -> list[str]:
    """Return the files that patterns such as data/*.parquet match, sorted and without duplicates."""
    files: set[str] = set()
    for pattern in patterns:
        if pattern == "-":
            raise BadInput("A Ray job reads files, not standard input; pass file names.")
        paths = [pattern] if Path(pattern).exists() else glob.glob(pattern, recursive=True)  # noqa: PTH207
        if Path(pattern).is_dir():
            paths = [str(path) for path in data_files(Path(pattern))]
        matches = {os.path.abspath(path) for path in paths if Path(path).is_file()}  # noqa: PTH100
        if not matches:
            hint = " The folder contains no data files." if Path(pattern).is_dir() else ""
            raise BadInput(f"No such file: {pattern}.{hint}")
        files |= matches
    return sorted(files)


def file_stamps(files: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and modification time of each file, to detect changes."""
    stats = [(file, Path(file).stat()) for file in files]
    return tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in stats)


def start_job(folder: Path, job: Job, overwrite: bool) -> str:
    """Create a job's folder, or check that the existing one belongs to the same job; return the job's token.

    Workers compare the token, so that those of an overwritten job stop.
    """
    if folder.exists() and not folder.is_dir():
        raise CannotWrite(f"{folder} is a file; a Ray job writes a folder.")
    is_job = (folder / JOB_FILE).is_file()
    if is_job and not overwrite:
        return _check_same(folder, job)
    if not is_job and folder.is_dir() and any(folder.iterdir()):
        raise CannotWrite(f"{folder} contains other files than a job's predictions; choose another folder.")
    token = uuid.uuid4().hex
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        check_managed(folder, MANAGED, "a job's predictions")
        with staged_file(folder / JOB_FILE, overwrite=True) as file:  # first, so that workers of the old job stop
            file.write(json.dumps(asdict(job) | {"token": token}, indent=1) + "\n")
        for path in folder.iterdir():
            if path.name != JOB_FILE:
                path.unlink()
    return token


def read_token(folder: Path) -> str | None:
    """Return the token of the job that owns the folder."""
    try:
        return str(json.loads((folder / JOB_FILE).read_text("utf-8"))["token"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def remove_leftovers(folder: Path) -> None:
    """Remove the partial files of killed workers, once every part is complete."""
    for path in folder.glob(".part-*"):
        if MANAGED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _check_same(folder: Path, job: Job) -> str:
    try:
        stored: dict[str, Any] = json.loads((folder / JOB_FILE).read_text("utf-8"))
    except (OSError, ValueError) as err:
        raise BadInput(f"Cannot read {folder / JOB_FILE} ({err}); choose another folder.") from err
    current = json.loads(json.dumps(asdict(job)))
    for field in fields(Job):
        if not isinstance(stored, dict) or stored.get(field.name) != current[field.name]:
            raise CannotWrite(
                f"{folder} contains the predictions of another job ({DIFFERENCES[field.name]}); "
                "choose another folder, or set `overwrite=True` to start over."
            )
    return str(stored.get("token"))


def part_file(folder: Path, number: int) -> Path:
    """Return the path of a part's predictions."""
    return folder / f"part-{number:06d}.parquet"


def finished_parts(folder: Path) -> Iterator[int]:
    """Yield the numbers of the finished parts: a file gets its final name only when it is complete."""
    for file in folder.glob("part-*.parquet"):
        if MANAGED.fullmatch(file.name):
            yield int(file.stem.removeprefix("part-"))
