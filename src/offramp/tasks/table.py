"""Labelled tables of any kind: TSV, CSV, JSON lines, Parquet, a Hugging Face data set; columns by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offramp.errors import BadInput, UnknownName
from offramp.reading import USUAL_COLUMNS, Source, Text, format_of, read_rows

__all__ = ["Columns", "Table", "has_labels", "read_hub", "read_table"]


@dataclass(frozen=True)
class Columns:
    """Which columns hold the text, its partner and the label."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class Table:
    """Texts and labels as they are written, each with the line or row that it stands on."""

    name: str
    texts: list[Text]
    labels: list[Any]
    lines: list[int]
    label_names: tuple[str, ...] | None = None  # a Hugging Face data set's own
    skipped: tuple[str, ...] = ()  # rows with too few columns

    def at(self, row: int) -> str:
        """Where a row stands."""
        return f"{self.name}, line {self.lines[row]}"


def read_table(file: Path, columns: Columns) -> Table:
    """A local file, its format told by its ending."""
    if not file.is_file():
        raise BadInput(f"No file {file}.")
    if file.suffix.lower() in (".parquet", ".pq"):
        return _from_dataset(_load(str(file.parent), "parquet", str(file)), str(file), columns)
    kind = format_of(str(file))
    if kind == "text":
        raise BadInput(f"{file}: expected a .tsv, .csv, .jsonl or .parquet file, told by its ending.")
    short: list[int] = []
    table = _collect(str(file), _json(file) if kind == "jsonl" else _cells(file, kind, short), columns)
    if not short:
        return table
    told = f"{file}: {len(short)} rows with too few columns were skipped, the first in line {short[0]}."
    return replace(table, skipped=(told,))


def has_labels(file: Path) -> bool:
    """Whether a file has a column called label; plain text has no columns."""
    if not file.is_file():
        raise BadInput(f"No file {file}.")
    if file.suffix.lower() in (".parquet", ".pq"):
        return "label" in _load(str(file.parent), "parquet", str(file)).column_names
    kind = format_of(str(file))
    if kind == "text":
        return False
    first = next(_json(file), (0, {})) if kind == "jsonl" else next(read_rows(Source(str(file), kind)), (0, [""]))
    return "label" in first[1]


def read_hub(path: str, config: str | None, split: str, columns: Columns) -> Table:
    """A split of a data set on the Hub, or of a local folder of one."""
    return _from_dataset(_load(path, config, None, split), f"{path}, split {split}", columns)


def _cells(file: Path, kind: str, short: list[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows by column; the lines of those with too few columns are noted."""
    rows = read_rows(Source(str(file), kind))
    header = next(rows, (0, [""]))[1]
    for line, cells in rows:
        if cells == [""]:
            continue
        if len(cells) < len(header):
            short.append(line)
            continue
        yield line, dict(zip(header, cells, strict=False))


def _json(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with file.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            if not raw.strip():
                continue
            try:
                row = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as err:
                raise BadInput(f"{file}, line {number}: not JSON ({err}).") from err
            if not isinstance(row, dict):
                raise BadInput(f"{file}, line {number}: expected an object with a text and a label.")
            yield number, row


def _collect(name: str, rows: Iterator[tuple[int, Mapping[str, Any]]], columns: Columns) -> Table:
    texts: list[Text] = []
    labels: list[Any] = []
    lines: list[int] = []
    chosen: tuple[str, str | None, str] | None = None
    for line, row in rows:
        chosen = chosen or _choose(name, columns, list(row))
        text, pair, label = chosen
        first = _text(name, line, row, text)
        texts.append(first if pair is None else (first, _text(name, line, row, pair)))
        if label not in row:
            raise BadInput(f"{name}, line {line}: {UnknownName('column', label, row)}")
        labels.append(row[label])
        lines.append(line)
    if not texts:
        raise BadInput(f"{name} is empty: there is nothing to learn from.")
    return Table(name, texts, labels, lines)


def _text(name: str, line: int, row: Mapping[str, Any], column: str) -> str:
    if column not in row:
        raise BadInput(f"{name}, line {line}: {UnknownName('column', column, row)}")
    text = row[column]
    if not isinstance(text, str):
        raise BadInput(f"{name}, line {line}: column {column!r} holds {text!r:.40}, expected a text.")
    return _whole(name, line, text)


def _whole(name: str, line: int, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as err:
        raise BadInput(f"{name}, line {line}: character {err.start + 1} of the text is half of a pair.") from err
    return text


def _choose(name: str, columns: Columns, there: list[str]) -> tuple[str, str | None, str]:
    """The columns of the text, of its partner and of the label."""
    text = columns.text or next((usual for usual in USUAL_COLUMNS if usual in there), None)
    label = columns.label or ("label" if "label" in there else None)
    if text is None or label is None:
        what = "text" if text is None else "label"
        raise BadInput(
            f"{name} has the columns {', '.join(there)}; say with --{what}-column which one holds the {what}."
        )
    for column in (text, columns.pair, label):
        if column is not None and column not in there:
            raise BadInput(f"{name}: {UnknownName('column', column, there)}")
    return text, columns.pair, label


def _load(path: str, config: str | None, file: str | None, split: str = "train") -> Any:
    try:
        import datasets
    except ImportError as err:
        raise BadInput("Reading this needs the data sets library: pip install 'offramp[train]'.") from err
    datasets.disable_progress_bars()
    try:
        if file is not None:
            return datasets.load_dataset("parquet", data_files=file, split="train")
        return datasets.load_dataset(path, config, split=split)
    except Exception as err:  # the library raises many kinds, of which none is a bug of ours
        where = file or f"data set {path}" + (f" ({config})" if config else "")
        raise BadInput(f"Cannot read {where}, split {split}: {' '.join(str(err).split())[:300]}") from err


def _from_dataset(data: Any, name: str, columns: Columns) -> Table:
    if not len(data):
        raise BadInput(f"{name} is empty: there is nothing to learn from.")
    text, pair, label = _choose(name, columns, data.column_names)
    firsts, labels = list(data[text]), list(data[label])
    partners = None if pair is None else list(data[pair])
    for column, cells in ((text, firsts), (pair, partners or ())):
        bad = next((row for row, cell in enumerate(cells, 1) if not isinstance(cell, str)), None)
        if bad is not None:
            raise BadInput(f"{name}, row {bad}: column {column!r} holds no text.")
    texts: list[Text] = firsts if partners is None else list(zip(firsts, partners, strict=True))
    feature = data.features[label]
    names = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)
    return Table(name, texts, labels, list(range(1, len(texts) + 1)), tuple(names) if names else None)
