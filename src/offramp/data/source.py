"""A file to read: its format, which columns hold what, and its lines, unpacked, none of them endless."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from offramp.errors import BadInput

__all__ = [
    "FORMATS",
    "LONGEST",
    "TABLE_KINDS",
    "Source",
    "check_file",
    "format_of",
    "lines_of",
    "no_partner",
    "opened",
    "text_columns",
]

FORMATS = {
    "text": "one text per line",
    "tsv": "tab-separated, no quoting",
    "csv": "comma-separated",
    "jsonl": "JSON lines",
    "parquet": "Parquet",
}
ENDINGS = {".txt": "text", ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
ENDINGS |= {".parquet": "parquet", ".pq": "parquet"}
TABLE_KINDS = ("auto", "single-label", "multi-label", "regression")  # of answers that a table's labels may be
PACKED = b"\x1f\x8b"  # how gzip's files begin
LONGEST = 100_000_000  # bytes of a line: what is longer is no text, and may have no end (/dev/zero)
USUAL_TEXT, USUAL_PAIR = ("text", "sentence"), "pair"


@dataclass(frozen=True)
class Source:
    """A file (or standard input, `-`), its format, and which columns hold the text and its partner.

    Columns are named by the header; without one they are numbers from 1. What is not given is what the model was
    trained on (`inputs`: a column, or two for pairs), else what such columns are usually called.
    """

    file: str
    format: str = "text"
    text_column: str | None = None
    pair_column: str | None = None
    has_header: bool = True
    inputs: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """How messages call it."""
        return "standard input" if self.file == "-" else self.file

    def at(self, line: int, fault: str) -> BadInput:
        """A fault with its place."""
        return BadInput(f"{self.name}, line {line}: {fault}")


def format_of(file: str) -> str:
    """The format that a file's name guarantees, packed or not; plain text where it guarantees none."""
    path = Path(file)
    return ENDINGS.get((path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower(), "text")


def text_columns(source: Source, there: Collection[str]) -> tuple[str | None, str | None]:
    """The columns of the text and of its partner among those that are there, None for what is not."""
    trained = source.inputs or ()
    text = source.text_column or next((name for name in (*trained[:1], *USUAL_TEXT) if name in there), None)
    if text is None and len(there) == 1:
        text = next(iter(there))
    if source.pair_column is not None or len(trained) == 1:
        return text, source.pair_column
    return text, next((name for name in (*trained[1:], USUAL_PAIR) if name in there and name != text), None)


def no_partner(source: Source) -> str:
    """What to say where a model of pairs finds single texts."""
    text, pair = source.inputs or ("", "")
    return (
        f"the model was trained on pairs ({text}, {pair}), and there is no partner; say with `pair_column=` which "
        "column holds it."
    )


def check_file(source: Source) -> None:
    """Refuse a file that is not there, and Parquet from a pipe."""
    if source.file != "-" and (not Path(source.file).exists() or Path(source.file).is_dir()):
        raise BadInput(f"No file {source.file}.")
    if source.file == "-" and source.format == "parquet":
        raise BadInput("Parquet cannot be read from standard input; name the file.")


@contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """The file's bytes; what gzip packed is unpacked, whatever its name."""
    if source.file == "-":
        if sys.stdin is None:
            raise BadInput("Standard input is closed; name a file.")
        yield _unpacked(cast(BinaryIO, sys.stdin.buffer))
        return
    with ExitStack() as stack:
        try:
            unpacked = _unpacked(cast(BinaryIO, stack.enter_context(Path(source.file).open("rb"))))
        except OSError as err:
            raise BadInput(f"Cannot read {source.name}: {err.strerror or err}.") from err
        yield unpacked


def _unpacked(file: BinaryIO) -> BinaryIO:
    buffered: Any = file if hasattr(file, "peek") else io.BufferedReader(cast(io.RawIOBase, file))
    packed = buffered.peek(2)[:2] == PACKED
    return cast(BinaryIO, gzip.GzipFile(fileobj=buffered) if packed else buffered)


def lines_of(source: Source, file: BinaryIO, before: int = 0) -> Iterator[tuple[int, str]]:
    """Numbered lines, split at line feeds alone (a text may hold U+0085), without byte-order mark.

    Where the file's first bytes were skipped, `before` lines were.
    """
    number = before
    while raw := _line(source, file, number + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            yield number, raw.decode("utf-8")
        except UnicodeDecodeError as err:
            fault = f"byte {err.start + 1} (0x{raw[err.start]:02x}) is not UTF-8; save the file as UTF-8."
            raise source.at(number, fault) from err


def _line(source: Source, file: BinaryIO, number: int) -> bytes:
    try:
        raw = file.readline(LONGEST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as err:
        raise source.at(number, f"what gzip packed is cut off or damaged ({err}); copy it again.") from err
    except OSError as err:
        raise BadInput(f"Cannot read {source.name}: {err.strerror or err}.") from err
    if len(raw) > LONGEST:
        raise source.at(number, f"longer than {LONGEST:,} bytes; is this a file of texts?")
    return raw
