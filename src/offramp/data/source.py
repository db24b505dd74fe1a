"""An input file: its format, its columns and its decompressed lines."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from offramp.data.rankings import DOCUMENT_COLUMNS, RANKING_INPUTS
from offramp.errors import BadInput
from offramp.files.storage import exists, is_folder, is_url, list_files, open_binary

__all__ = [
    "FORMATS",
    "MAX_LINE_BYTES",
    "PROBLEM_CHOICES",
    "Source",
    "check_file",
    "data_files",
    "describe_dead_link",
    "infer_format",
    "is_readable_twice",
    "missing_pair_message",
    "numbered_lines",
    "open_source",
    "source_parts",
    "text_columns",
]

FORMATS = {
    "text": "one text per line",
    "tsv": "tab-separated, no quoting",
    "csv": "comma-separated",
    "jsonl": "JSON lines",
    "parquet": "Parquet",
    "conll": "a word and its tag per line, a blank line between texts",
}
EXTENSIONS = {".txt": "text", ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
EXTENSIONS |= {".parquet": "parquet", ".pq": "parquet", ".conll": "conll", ".iob": "conll", ".bio": "conll"}
PROBLEM_CHOICES = ("auto", "single-label", "multi-label", "regression", "token")  # for labels in a table
GZIP_MAGIC = b"\x1f\x8b"
MAX_LINE_BYTES = 100_000_000  # longer lines are not text, and may never end (/dev/zero)
DEFAULT_TEXT_COLUMNS, DEFAULT_PAIR_COLUMN = ("text", "sentence"), "pair"


@dataclass(frozen=True)
class Source:
    """A file (or standard input, `-`), its format, and the columns of the text and of the second text of each pair.

    Columns are named by the header; without a header they are numbered from 1. Columns that are not set default to
    those that the model was trained on (`inputs`: one column, or two for pairs), then to the usual names.
    """

    file: str
    format: str = "text"
    text_column: str | None = None
    pair_column: str | None = None
    has_header: bool = True
    inputs: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """Name for messages."""
        return "standard input" if self.file == "-" else self.file

    def error_at(self, line: int, message: str) -> BadInput:
        """Return an error with the file name and the line number."""
        return BadInput(f"{self.name}, line {line}: {message}")


def infer_format(file: str) -> str:
    """Return the format that a file name implies, with or without `.gz`; plain text for other extensions.

    The format of a folder is that of its files.
    """
    if _is_folder(file):
        formats = sorted({str(_format_of_extension(part)) for part in data_files(file)})
        if len(formats) > 1:
            raise BadInput(f"The files in {file} have different formats ({', '.join(formats)}); pass one of them.")
        return formats[0] if formats else "text"
    return _format_of_extension(file) or "text"


def _is_folder(file: str) -> bool:
    """Whether a file name is that of a folder; a URL with the extension of a data file is none, without asking."""
    return not (is_url(file) and _format_of_extension(file)) and is_folder(file)


def _format_of_extension(file: str) -> str | None:
    path = PurePosixPath(file)
    return EXTENSIONS.get((path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower())


def data_files(folder: str) -> list[str]:
    """Return the data files in a folder and its subfolders, sorted; hidden files and other extensions are left out."""
    names = [name for name in list_files(folder) if _format_of_extension(name) is not None]
    visible = [name for name in names if not any(part[0] in "._" for part in name.split("/"))]
    if is_url(folder):
        return [f"{folder.rstrip('/')}/{name}" for name in visible]
    return [str(path) for path in sorted(Path(folder) / name for name in visible)]


def source_parts(source: Source) -> list[Source]:
    """Return the source, or one per file if it is a folder."""
    if source.file == "-" or not _is_folder(source.file):
        return [source]
    return [replace(source, file=file) for file in data_files(source.file)]


def is_readable_twice(source: Source) -> bool:
    """Whether the source is a file or a folder; standard input and pipes can only be read once."""
    return is_url(source.file) or Path(source.file).is_file() or Path(source.file).is_dir()


def text_columns(source: Source, columns: Collection[str]) -> tuple[str | None, str | None]:
    """Return the columns of the text and of the second text of each pair; None for a column that is missing."""
    trained = source.inputs or ()
    candidates = (*trained[:1], *DEFAULT_TEXT_COLUMNS)
    text = source.text_column or next((name for name in candidates if name in columns), None)
    if text is None and len(columns) == 1:
        text = next(iter(columns))
    if source.pair_column is not None or len(trained) == 1:
        return text, source.pair_column
    candidates = (*trained[1:], *(DOCUMENT_COLUMNS if trained == RANKING_INPUTS else ()), DEFAULT_PAIR_COLUMN)
    return text, next((name for name in candidates if name in columns and name != text), None)


def missing_pair_message(source: Source) -> str:
    """Return the message for single texts where the model expects pairs."""
    if source.inputs == RANKING_INPUTS:
        return (
            "the model ranks documents for queries, so each JSON line needs `query` and `documents` "
            "(`input_format='jsonl'`), or a table needs the columns `query` and `document`."
        )
    text, pair = source.inputs or ("", "")
    return (
        f"the model was trained on pairs ({text}, {pair}), and the second text is missing; use `pair_column=` to name "
        "its column."
    )


def check_file(source: Source) -> None:
    """Raise if the file does not exist, if a folder has no data files, or if it is Parquet from standard input."""
    if source.file != "-" and not exists(source.file):
        raise BadInput(f"File not found: {source.file}{describe_dead_link(source.file)}.")
    if not source_parts(source):
        raise BadInput(f"The folder {source.file} contains no data files ({', '.join(EXTENSIONS)}, also with .gz).")
    if source.file == "-" and source.format == "parquet":
        raise BadInput("Parquet cannot be read from standard input; pass a file path.")


def describe_dead_link(file: str) -> str:
    """Return a note for a message if the file is a symbolic link whose target does not exist, else nothing."""
    is_dead = not is_url(file) and Path(file).is_symlink() and not Path(file).exists()
    return f" (a symbolic link to {Path(file).readlink()}, which does not exist)" if is_dead else ""


@contextmanager
def open_source(source: Source) -> Iterator[BinaryIO]:
    """Yield the file's bytes, decompressed if they are gzip, whatever the file name."""
    if source.file == "-":
        if sys.stdin is None:
            raise BadInput("Standard input is closed; pass a file path.")
        yield _decompressed(cast(BinaryIO, sys.stdin.buffer))
        return
    with ExitStack() as stack:
        try:
            file = _decompressed(stack.enter_context(open_binary(source.file)))
        except OSError as err:
            raise BadInput(f"Cannot read {source.name}: {err.strerror or err}.") from err
        yield file


def _decompressed(file: BinaryIO) -> BinaryIO:
    buffered: Any = file if hasattr(file, "peek") else io.BufferedReader(cast(io.RawIOBase, file))
    is_gzip = buffered.peek(2)[:2] == GZIP_MAGIC
    return cast(BinaryIO, gzip.GzipFile(fileobj=buffered) if is_gzip else buffered)


def numbered_lines(source: Source, file: BinaryIO, lines_before: int = 0) -> Iterator[tuple[int, str]]:
    """Yield numbered lines, split only at line feeds (a text may contain U+0085), without a byte-order mark.

    `lines_before` is the number of lines that were skipped at the start of the file.
    """
    number = lines_before
    while raw := _read_line(source, file, number + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            yield number, raw.decode("utf-8")
        except UnicodeDecodeError as err:
            message = f"byte {err.start + 1} (0x{raw[err.start]:02x}) is not UTF-8; save the file as UTF-8."
            raise source.error_at(number, message) from err


def _read_line(source: Source, file: BinaryIO, number: int) -> bytes:
    try:
        raw = file.readline(MAX_LINE_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as err:
        raise source.error_at(number, f"the gzip data is truncated or corrupt ({err}); copy the file again.") from err
    except OSError as err:
        raise BadInput(f"Cannot read {source.name}: {err.strerror or err}.") from err
    if len(raw) > MAX_LINE_BYTES:
        raise source.error_at(number, f"longer than {MAX_LINE_BYTES:,} bytes; is this a text file?")
    return raw
