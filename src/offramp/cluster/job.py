"""The description of a batch job, stored beside its predictions so that the job can be resumed.

The parts contain the job's token in their metadata: a worker of an overwritten job may write one at any time.
"""

from __future__ import annotations

import json
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any

from offramp.cluster.output_folder import OutputFolder
from offramp.errors import BadInput, CannotWrite

__all__ = [
    "JOB_FILE",
    "Job",
    "check_complete",
    "finished_parts",
    "owns_folder",
    "part_metadata",
    "part_name",
    "remove_own_part",
    "start_job",
]

JOB_FILE = "_job.json"  # Parquet readers skip files whose names start with _ or .
PART = re.compile(r"part-(\d+)\.parquet")
TOKEN_KEY = b"offramp_job"  # in the metadata of a part
READERS = 16  # threads that read metadata


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
    files: tuple[tuple[str, int, str], ...]  # name, bytes, checksum of the content


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


def start_job(folder: OutputFolder, job: Job, overwrite: bool) -> str:
    """Create a job's folder, or check that the existing one belongs to the same job; return the job's token.

    Workers compare the token, so that those of an overwritten job stop.
    """
    names = folder.names()
    if JOB_FILE in names and not overwrite:
        return _check_same(folder, job)
    if JOB_FILE not in names and names:
        raise CannotWrite(f"{folder} contains other files than a job's predictions; choose another folder.")
    others = [name for name in names if name != JOB_FILE]
    if unmanaged := [name for name in others if not PART.fullmatch(name)]:
        raise CannotWrite(
            f"{folder} contains files that are not part of a job's predictions ({unmanaged[0]}), so it is not "
            "overwritten. Choose another folder."
        )
    token = uuid.uuid4().hex
    content = json.dumps(asdict(job) | {"token": token}, indent=1) + "\n"
    folder.write(JOB_FILE, content.encode())  # first, so that workers of the old job stop
    folder.remove(others)
    return token


def owns_folder(folder: OutputFolder, token: str) -> bool:
    """Whether the folder still belongs to the job with this token."""
    try:
        return bool(json.loads(folder.read(JOB_FILE) or b"{}").get("token") == token)
    except (ValueError, AttributeError):
        return False


def _check_same(folder: OutputFolder, job: Job) -> str:
    try:
        stored: dict[str, Any] = json.loads(folder.read(JOB_FILE) or b"")
    except ValueError as err:
        raise BadInput(f"Cannot read {folder}/{JOB_FILE} ({err}); choose another folder.") from err
    current = json.loads(json.dumps(asdict(job)))
    for field in fields(Job):
        if not isinstance(stored, dict) or stored.get(field.name) != current[field.name]:
            raise CannotWrite(
                f"{folder} contains the predictions of another job ({DIFFERENCES[field.name]}); "
                "choose another folder, or set `overwrite=True` to start over."
            )
    return str(stored.get("token"))


def part_name(number: int) -> str:
    """Return the name of the file with a part's predictions."""
    return f"part-{number:06d}.parquet"


def part_metadata(token: str) -> dict[bytes, bytes]:
    """Return the metadata of the parts of a job."""
    return {TOKEN_KEY: token.encode()}


def finished_parts(folder: OutputFolder, token: str) -> set[int]:
    """Return the numbers of the parts that this job has finished."""
    numbers = {name: int(match[1]) for name in folder.names() if (match := PART.fullmatch(name))}
    with ThreadPoolExecutor(READERS) as pool:
        own = pool.map(lambda name: _is_own_part(folder, name, token), numbers)
        return {number for number, is_own in zip(numbers.values(), own, strict=True) if is_own}


def check_complete(folder: OutputFolder, token: str, numbers: set[int]) -> None:
    """Raise if a part of this job is missing, or if the folder contains a part of another job."""
    finished = finished_parts(folder, token)
    if missing := numbers - finished:
        raise BadInput(
            f"Part {min(missing)} is missing in {folder}, or another job replaced it. Check that all machines share "
            "this folder, and run the job again to continue with the missing parts."
        )
    own = {part_name(number) for number in finished}
    if others := [name for name in folder.names() if PART.fullmatch(name) and name not in own]:
        raise BadInput(f"{folder}/{others[0]} was written by another job; delete it.")


def remove_own_part(folder: OutputFolder, number: int, token: str) -> None:
    """Remove a part, unless another job has replaced it."""
    if _is_own_part(folder, part_name(number), token):
        folder.remove([part_name(number)])


def _is_own_part(folder: OutputFolder, name: str, token: str) -> bool:
    metadata = folder.parquet_metadata(name)
    return metadata is not None and metadata.get(TOKEN_KEY) == token.encode()
