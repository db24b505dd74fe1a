"""The input files of a batch job: which files the names and patterns match, and whether they have changed."""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from offramp.data.source import data_files, describe_dead_link
from offramp.errors import BadInput
from offramp.files.storage import file_info, is_folder, is_url, match_files, open_binary

__all__ = ["UnchangedFiles", "checksum", "common_folder", "expand_patterns", "name_in", "version"]

CHECKSUMS = ("ETag", "md5Hash", "crc32c", "blob_id", "etag")  # as S3, Google Storage, the Hub and Azure call them


def expand_patterns(patterns: Sequence[str]) -> list[str]:
    """Return the files that names and patterns such as data/*.parquet match, sorted and without duplicates."""
    files: set[str] = set()
    for pattern in patterns:
        if pattern == "-":
            raise BadInput("A Ray job reads files, not standard input; pass file names.")
        matches, hint = match_files(pattern), describe_dead_link(pattern)
        if not matches and is_folder(pattern):
            matches = [_absolute(file) for file in data_files(pattern)]
            hint = "" if matches else ". The folder contains no data files"
        if not matches:
            raise BadInput(f"No such file: {pattern}{hint}.")
        files |= set(matches)
    if len({is_url(file) and file.split("://")[0] for file in files}) > 1:
        raise BadInput("Some input files are local and some are not, or on different storage; run one job for each.")
    return sorted(files)


def _absolute(file: str) -> str:
    return file if is_url(file) else os.path.abspath(file)  # noqa: PTH100


def common_folder(files: Sequence[str]) -> str:
    """Return the folder that contains all files."""
    if not is_url(files[0]):
        return os.path.commonpath([str(Path(file).parent) for file in files])
    scheme = files[0].split("://")[0]
    folder = posixpath.commonpath([posixpath.dirname(file.split("://", 1)[1]) for file in files])
    return f"{scheme}://{folder}"


def name_in(folder: str, file: str) -> str:
    """Return the name of a file relative to a folder that contains it."""
    return file.removeprefix(folder).lstrip("/") if is_url(file) else str(Path(file).relative_to(folder))


def checksum(file: str) -> tuple[int, str]:
    """Return the size of a file and a checksum of its content: what identifies the input of a job.

    A copy of a file has the same checksum. Object storage computes checksums itself; a local file is read once.
    """
    if is_url(file):
        info = file_info(file)
        if stored := _stored_checksum(info):
            return int(info["size"]), stored
    try:
        with open_binary(file) as content:
            digest = hashlib.file_digest(cast(io.BufferedReader, content), "sha256").hexdigest()
            return content.tell(), digest
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror or err}.") from err


def version(file: str) -> str:
    """Return a value that changes when a file is modified, without reading the file."""
    if is_url(file):
        info = file_info(file)
        return f"{info['size']} bytes, {_stored_checksum(info)}"
    try:
        stat = Path(file).stat()
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror or err}.") from err
    return f"{stat.st_size} bytes, {stat.st_mtime_ns}"


class UnchangedFiles:
    """Checks that files are still what they were when they were split.

    Machines may have copies of a file with different dates. A file with another date is therefore read and compared by
    its checksum, once: the date of the copy is remembered.
    """

    def __init__(self, versions: Mapping[str, str], checksums: Mapping[str, tuple[int, str]]):
        self.versions, self.checksums = dict(versions), checksums

    def check(self, file: str) -> None:
        """Raise if a file was modified."""
        current = version(file)
        if current == self.versions.get(file):
            return
        if is_url(file) or checksum(file) != self.checksums.get(file):
            raise BadInput(f"{file} was modified while the job was running; start over with `overwrite=True`.")
        self.versions[file] = current


def _stored_checksum(info: dict[str, Any]) -> str | None:
    return next((str(info[name]).strip('"') for name in CHECKSUMS if info.get(name)), None)
