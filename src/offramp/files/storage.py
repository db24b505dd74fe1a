"""Files on local disk or, given by URL, on object storage (s3://, gs://, abfs://, hf://) through fsspec."""

from __future__ import annotations

import errno
import glob
import importlib.util
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from offramp.errors import BadInput, BadModel, BadValue, CannotWrite, OfframpError
from offramp.files.error_lines import first_line

__all__ = [
    "accessing",
    "check_local",
    "check_local_model",
    "exists",
    "file_info",
    "file_system",
    "is_folder",
    "is_url",
    "list_files",
    "match_files",
    "open_binary",
    "read_range",
]

PACKAGES = {  # the fsspec package of each scheme
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "hf": "huggingface_hub",
}
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
URL_AS_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # `pathlib` removes one of the slashes
BLOCK_BYTES = 8 * 2**20  # read at a time from object storage


def is_url(location: object) -> bool:
    """Whether a location is a URL instead of a local path."""
    return isinstance(location, str) and URL.match(location) is not None


def _original_url(path: Path) -> str | None:
    """Return the URL that a path was made from; None if it was not made from one."""
    match = URL_AS_PATH.match(path.as_posix())
    return match and f"{match[1]}://{path.as_posix()[match.end() :]}"


def check_local_model(model: str | os.PathLike[str]) -> None:
    """Raise if a model is given by URL."""
    if not Path(model).exists() and (url := _original_url(Path(model))):
        raise BadModel(
            f"Cannot load {url}: only `predict --engine ray` loads models from object storage; "
            "copy the folder to local disk."
        )


def check_local(path: Path) -> None:
    """Raise if a path was made from a URL: it would be written to a local folder called `s3:`."""
    if url := _original_url(path):
        raise CannotWrite(
            f"Cannot write {url}: only `predict --engine ray` writes to object storage; "
            "choose a local path and copy the result."
        )


def file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL and the path in it; raise if its package is not installed."""
    scheme = url.split("://", 1)[0].lower()
    if scheme not in PACKAGES:
        raise BadValue(f"Unsupported URL {url}: use a local path, s3://, gs://, abfs:// or hf://.")
    package = PACKAGES[scheme]
    if importlib.util.find_spec(package) is None:
        raise BadValue(f"Access to {url} needs the package {package}: pip install {package}.")
    import fsspec.core

    with accessing(url):
        system, path = fsspec.core.url_to_fs(url)
    return system, path.rstrip("/")


@contextmanager
def accessing(url: str, error: type[OfframpError] = BadInput) -> Iterator[None]:
    """Turn the exceptions of a storage client into one line; each client has its own exception types."""
    try:
        yield
    except OfframpError:
        raise
    except FileNotFoundError as err:
        raise error(f"Not found: {url} ({first_line(err)}).") from err
    except Exception as err:
        raise error(f"Cannot access {url}: {first_line(err)}.") from err


def exists(location: str) -> bool:
    """Whether there is a file or a folder at a location."""
    if not is_url(location):
        return Path(location).exists()
    system, path = file_system(location)
    with accessing(location):
        system.invalidate_cache()
        return bool(system.exists(path))


def is_folder(location: str) -> bool:
    """Whether a location is a folder; on object storage, a prefix of other names."""
    if not is_url(location):
        return Path(location).is_dir()
    system, path = file_system(location)
    with accessing(location):
        system.invalidate_cache()
        return not system.isfile(path) and bool(system.isdir(path))


def list_files(folder: str) -> list[str]:
    """Return the names of all files in a folder and its subfolders, relative to it and sorted."""
    if not is_url(folder):
        return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())
    system, path = file_system(folder)
    try:
        with accessing(folder):
            system.invalidate_cache()
            files = system.find(path)
    except BadInput as err:
        if isinstance(err.__cause__, FileNotFoundError) and system.exists(path.split("/", 1)[0]):
            return []
        raise
    names = (str(file).removeprefix(path).lstrip("/") for file in files)
    return sorted(name for name in names if name and not name.endswith("/"))  # a marker of a folder is no file


def match_files(pattern: str) -> list[str]:
    """Return the files that a name or a pattern such as data/*.parquet matches, with absolute paths or as URLs."""
    if not is_url(pattern):
        paths = [pattern] if Path(pattern).exists() else glob.glob(pattern, recursive=True)  # noqa: PTH207
        return [os.path.abspath(path) for path in paths if Path(path).is_file()]  # noqa: PTH100
    system, path = file_system(pattern)
    scheme = pattern.split("://", 1)[0]
    with accessing(pattern):
        system.invalidate_cache()
        if system.isfile(path):
            return [f"{scheme}://{path}"]
        matches = system.glob(path, detail=True) if glob.has_magic(path) else {}
    files = [name for name, info in matches.items() if info["type"] == "file"]
    if not path.rsplit("/", 1)[-1].startswith("."):  # `*` does not match hidden files, as on disk
        files = [file for file in files if not file.rsplit("/", 1)[-1].startswith(".")]
    return [f"{scheme}://{file}" for file in files]


def file_info(url: str) -> dict[str, Any]:
    """Return what the storage reports about an object: size, checksum, …."""
    system, path = file_system(url)
    with accessing(url):
        system.invalidate_cache()
        return dict(system.info(path))


def open_binary(location: str) -> BinaryIO:
    """Open a file for buffered reading."""
    if not is_url(location):
        return cast(BinaryIO, Path(location).open("rb"))
    system, path = file_system(location)
    with accessing(location):
        file = system.open(path, "rb", block_size=BLOCK_BYTES)
    return cast(BinaryIO, io.BufferedReader(_RemoteFile(location, file), 2**20))


def read_range(location: str, start: int, size: int | None) -> bytes:
    """Return `size` bytes of a file from an offset, or all of the rest."""
    if is_url(location):
        system, path = file_system(location)
        with accessing(location):
            return bytes(system.cat_file(path, start=start, end=None if size is None else start + size))
    with Path(location).open("rb") as file:
        file.seek(start)
        return file.read(-1 if size is None else size)


class _RemoteFile(io.RawIOBase):
    """An object that is read; whatever its client raises becomes an `OSError`, as for local files."""

    def __init__(self, url: str, file: Any):
        self.url, self.file = url, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self.file.tell())

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return int(self.file.seek(offset, whence))

    def readinto(self, buffer: Any, /) -> int:
        try:
            content = self.file.read(len(buffer))
        except Exception as err:
            raise OSError(errno.EIO, first_line(err), self.url) from err
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self.file.close()
        super().close()
