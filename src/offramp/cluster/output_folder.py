"""The folder that a batch job writes: on local disk, or a prefix on object storage.

A file has its final name only when it is complete. On disk it is written under a hidden name and renamed. Object
storage has no rename, but an object appears when its upload is complete, all at once.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from offramp.data.source import describe_dead_link
from offramp.errors import BadInput, CannotWrite
from offramp.files.storage import accessing, file_system, is_url, list_files, open_binary
from offramp.files.writing import writing

__all__ = ["OutputFolder", "open_folder"]

HIDDEN = re.compile(r"\.(part-\d+|_job)\.[0-9a-f]{32}")  # files that are not complete
RENAME_ATTEMPTS = 5


@dataclass(frozen=True)
class OutputFolder(ABC):
    """A folder of files that are written completely or not at all."""

    location: str

    def __str__(self) -> str:
        return self.location

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the files, without those that are not complete; none if the folder does not exist."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if there is no such file."""

    def parquet_metadata(self, name: str) -> dict[bytes, bytes] | None:
        """Return the metadata of a Parquet file, without reading its rows; None if there is no such file."""
        from pyarrow import ArrowException
        from pyarrow.parquet import read_metadata

        try:
            with self.open(name) as file:
                return dict(read_metadata(file).metadata or {})
        except (FileNotFoundError, ArrowException):
            return None
        except OSError as err:
            if err.errno is None:  # as pyarrow raises it for a damaged file
                return None
            raise BadInput(f"Cannot read {self}/{name}: {err.strerror or err}.") from err

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open a file for reading; raise `FileNotFoundError` if there is no such file."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that do not exist are ignored."""

    @abstractmethod
    def remove_incomplete(self) -> None:
        """Remove what killed processes left of files that are not complete."""


def open_folder(location: str) -> OutputFolder:
    """Return the folder at a path or URL; raise if a folder cannot be there."""
    if is_url(location):
        file_system(location)  # raises if the package is not installed
        return ObjectFolder(location.rstrip("/"))
    if note := describe_dead_link(location):
        raise CannotWrite(f"Cannot write {location}{note}; remove the link or create its target.")
    if Path(location).exists() and not Path(location).is_dir():
        raise CannotWrite(f"{location} is a file; a Ray job writes a folder.")
    return LocalFolder(str(Path(location).resolve()))


class LocalFolder(OutputFolder):
    """A folder on disk."""

    @property
    def path(self) -> Path:
        """The folder's path."""
        return Path(self.location)

    def names(self) -> list[str]:
        if not self.path.is_dir():
            return []
        return sorted(path.name for path in self.path.iterdir() if not HIDDEN.fullmatch(path.name))

    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as err:
            raise BadInput(f"Cannot read {self.path / name}: {err.strerror or err}.") from err

    def open(self, name: str) -> BinaryIO:
        return cast(BinaryIO, (self.path / name).open("rb"))

    def write(self, name: str, content: bytes) -> None:
        stem = name.removesuffix(".parquet").removesuffix(".json")
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            for _ in range(RENAME_ATTEMPTS):
                hidden = self.path / f".{stem}.{uuid.uuid4().hex}"
                try:
                    hidden.write_bytes(content)
                    with suppress(FileNotFoundError):  # removed as a leftover by another driver: write it again
                        hidden.replace(self.path / name)
                        return
                finally:
                    hidden.unlink(missing_ok=True)
        raise CannotWrite(f"{self.path / name} was deleted while it was written; rerun the job.")

    def remove(self, names: Iterable[str]) -> None:
        with writing(self.path):
            for name in names:
                (self.path / name).unlink(missing_ok=True)

    def remove_incomplete(self) -> None:
        if self.path.is_dir():
            self.remove(path.name for path in self.path.iterdir() if HIDDEN.fullmatch(path.name))


class ObjectFolder(OutputFolder):
    """A prefix on object storage."""

    def _path(self, name: str) -> tuple[Any, str]:
        return file_system(f"{self.location}/{name}")

    def names(self) -> list[str]:
        return list_files(self.location)

    def read(self, name: str) -> bytes | None:
        system, path = self._path(name)
        try:
            with accessing(f"{self.location}/{name}"):
                system.invalidate_cache()
                return bytes(system.cat_file(path))
        except BadInput as err:
            if isinstance(err.__cause__, FileNotFoundError):
                return None
            raise

    def open(self, name: str) -> BinaryIO:
        system, _ = self._path(name)
        try:
            system.invalidate_cache()
            return open_binary(f"{self.location}/{name}")
        except BadInput as err:
            if isinstance(err.__cause__, FileNotFoundError):
                raise FileNotFoundError(name) from err
            raise

    def write(self, name: str, content: bytes) -> None:
        system, path = self._path(name)
        with accessing(f"{self.location}/{name}", CannotWrite):
            system.pipe_file(path, content)  # one upload; a large one is aborted if it fails

    def remove(self, names: Iterable[str]) -> None:
        system, path = file_system(self.location)
        with accessing(self.location, CannotWrite):
            for name in names:
                with suppress(FileNotFoundError):
                    system.rm_file(f"{path}/{name}")

    def remove_incomplete(self) -> None:
        """Abort the uploads of killed processes; S3 keeps (and charges for) what was uploaded until then."""
        system, path = file_system(self.location)
        if not hasattr(system, "call_s3"):
            return  # other storage discards unfinished uploads after some days
        bucket, _, prefix = path.partition("/")
        with suppress(OSError):  # not every account may list uploads, and not every server can
            listing = system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/")
            for upload in listing.get("Uploads", ()):
                upload_id = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                system.call_s3("abort_multipart_upload", Bucket=bucket, **upload_id)
