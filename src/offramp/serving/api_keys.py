"""API keys: from an option, the environment or a file, which can be edited while the server runs."""

from __future__ import annotations

import hmac
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from offramp.errors import BadValue

__all__ = ["ApiKeys", "find_keys", "read_keys"]

logger = logging.getLogger("offramp")

VARIABLE = "OFFRAMP_API_KEY"
CHECK_SECONDS = 1.0  # between two looks at the file's modification time


def read_keys(file: Path) -> tuple[str, ...]:
    """Return the keys in a file: one per line; empty lines and lines that start with # are ignored."""
    try:
        lines = [line.strip() for line in file.read_text("utf-8-sig").splitlines()]
    except OSError as err:
        raise BadValue(f"Cannot read {file}: {err.strerror}.") from err
    except UnicodeDecodeError as err:
        raise BadValue(f"{file} is not UTF-8 text.") from err
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise BadValue(f"{file} contains no key.")
    _check_ascii(keys)
    return keys


def _check_ascii(keys: Sequence[str]) -> None:
    if not all(key.isascii() and key.isprintable() for key in keys):
        raise BadValue("An API key contains characters that HTTP headers do not support; use ASCII letters and digits.")


class ApiKeys:
    """The keys that clients may send; those of a file are read again when it changes."""

    def __init__(self, keys: Sequence[str] = (), file: Path | None = None, clock: Callable[[], float] = time.monotonic):
        self.file, self.clock = file, clock
        self._keys = tuple(keys) if file is None else read_keys(file)
        self._changed, self._checked = self._file_state(), clock()

    def accepts(self, key: str) -> bool:
        """Return whether a key is valid; takes the same time for all keys."""
        if self.file is not None and self.clock() - self._checked >= CHECK_SECONDS:
            self._read_again(self.file)
        sent = key.encode("utf-8", "replace")
        return sum(hmac.compare_digest(sent, known.encode()) for known in self._keys) > 0

    def _read_again(self, file: Path) -> None:
        self._checked, state = self.clock(), self._file_state()
        if state == self._changed:
            return
        self._changed = state
        try:
            self._keys = read_keys(file)
        except BadValue as err:
            logger.warning("The API keys stay as they are: %s", err)
        else:
            logger.warning("Read %d API keys from %s.", len(self._keys), file)

    def _file_state(self) -> tuple[int, int, int] | None:
        try:
            stat = None if self.file is None else self.file.stat()
        except OSError:
            return None
        return None if stat is None else (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def find_keys(api_key: str | None, file: Path | None) -> ApiKeys | None:
    """Return the API keys of an argument, a file, or the environment."""
    if api_key is not None and file is not None:
        raise BadValue("Set only one of `api_key=` and `api_key_file=`.")
    if file is not None:
        return ApiKeys(file=file)
    if api_key is not None:
        if not api_key.strip():
            raise BadValue("`api_key` is empty.")
        _check_ascii([api_key.strip()])
        return ApiKeys([api_key.strip()])
    if VARIABLE not in os.environ:
        return None
    keys = [key.strip() for key in os.environ[VARIABLE].split(",") if key.strip()]
    if not keys:
        raise BadValue(f"The environment variable {VARIABLE} is empty; set a key, or unset it.")
    _check_ascii(keys)
    return ApiKeys(keys)
