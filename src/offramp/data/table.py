"""Labelled tables of any kind: TSV, CSV, JSON lines, Parquet, a Hugging Face data set; columns by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offramp.data.reading import Source, Text, format_of, listed, parquet_metadata, read_records, whole
from offramp.data.source import no_partner, text_columns
from offramp.errors import BadInput, UnknownName
from offramp.extras import require

__all__ = ["Columns", "Table", "load_hub", "read_hub", "read_table", "table_of"]


YES_OR_NO = {"1": True, "1.0": True, "true": True, "yes": True, "0": False, "0.0": False, "false": False, "no": False}


@dataclass(frozen=True)
class Columns:
    """Which columns hold the text, its partner and the label; those that the model was trained on."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    inputs: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Table:
    """Texts and labels as they are written, each with the line or row that it stands on."""

    name: str
    texts: list[Text]
    labels: list[Any]
    lines: list[int]
    label_names: tuple[str, ...] | None = None  # a Hugging Face data set's own
    skipped: tuple[str, ...] = ()  # rows with another number of columns
    inputs: tuple[str, ...] = ("text",)  # the columns that the texts stand in

    def at(self, row: int) -> str:
        """Where a row stands."""
        return f"{self.name}, line {self.lines[row]}"


def read_table(file: str, columns: Columns, kind: str | None = None, has_header: bool = True) -> Table:
    """A local file; its format is told by its ending unless it is given."""
    kind = kind or format_of(file)
    if not Path(file).is_file():
        raise BadInput(f"No file {file}.")
    if kind == "text":
        raise BadInput(f"{file}: expected a .tsv, .csv, .jsonl or .parquet file, told by its ending.")
    source = Source(file, kind, columns.text, columns.pair, has_header, columns.inputs)
    odd: list[int] = []
    texts: list[Text] = []
    labels: list[Any] = []
    lines: list[int] = []
    chosen: tuple[str, str | None, str] | None = None
    for line, row in read_records(source, odd):
        chosen = chosen or _choose(source, columns.label, list(row))
        text, pair, label = chosen
        first = _text(source, line, row, text)
        texts.append(first if pair is None else (first, _text(source, line, row, pair)))
        labels.append(_label(source, line, row, label))
        lines.append(line)
    if chosen is None:
        raise BadInput(f"{file} is empty: there is nothing to learn from.")
    skipped = (
        f"{file}: {len(odd)} rows with too few or too many columns were skipped, the first in line {(odd or [0])[0]}."
    )
    names = _class_names(source, chosen[2]) if kind == "parquet" else None
    return Table(file, texts, labels, lines, names, (skipped,) if odd else (), _named(*chosen[:2]))


def read_hub(path: str, config: str | None, split: str, columns: Columns) -> Table:
    """A split of a data set on the Hub, or of a local folder of one."""
    return _from_dataset(load_hub(path, config, split), f"{path}, split {split}", columns)


def _text(source: Source, line: int, row: Mapping[str, Any], column: str) -> str:
    if column not in row:
        raise source.at(line, str(UnknownName("column", column, row)))
    text = row[column]
    if not isinstance(text, str):
        raise source.at(line, f"column {column!r} holds {text!r:.40}, expected a text.")
    return whole(source, line, text)


def _label(source: Source, line: int, row: Mapping[str, Any], column: str) -> Any:
    """A row's label; of several columns, one per class, the names of those that say yes."""
    if column in row:
        return row[column]
    names = [name.strip() for name in column.split(",")]
    if missing := [name for name in names if name not in row]:
        raise source.at(line, str(UnknownName("column", missing[0], row)))
    answers = {name: YES_OR_NO.get(str(row[name]).strip().casefold()) for name in names}
    if unclear := [name for name, yes in answers.items() if yes is None]:
        raise source.at(line, f"column {unclear[0]!r} holds {row[unclear[0]]!r:.40}, expected 0 or 1.")
    return [name for name, yes in answers.items() if yes]


def _named(text: str, pair: str | None) -> tuple[str, ...]:
    return (text,) if pair is None else (text, pair)


def _choose(source: Source, label: str | None, there: list[str]) -> tuple[str, str | None, str]:
    """The columns of the text, of its partner and of the label."""
    name = source.name
    label = label or ("label" if "label" in there else None)
    text, pair = text_columns(source, [column for column in there if column != label])
    if text is None or label is None:
        what = "text" if text is None else "label"
        raise BadInput(f"{name} has the columns {listed(there)}; say with `{what}_column=` which one holds the {what}.")
    several = [part.strip() for part in label.split(",")] if label not in there else [label]
    for column in (text, pair, *several):
        if column is not None and column not in there:
            raise BadInput(f"{name}: {UnknownName('column', column, there)}")
    if pair is None and len(source.inputs or ()) == 2:
        raise BadInput(f"{name} has the columns {listed(there)}; {no_partner(source)}")
    return text, pair, label


def _class_names(source: Source, column: str) -> tuple[str, ...] | None:
    """The names that a Hugging Face data set's Parquet file gives its classes."""
    written = parquet_metadata(source).get(b"huggingface")
    try:
        feature = json.loads(written or b"{}").get("info", {}).get("features", {}).get(column, {})
    except (ValueError, AttributeError):
        return None
    feature = feature.get("feature", feature) if isinstance(feature, dict) else {}
    names = feature.get("names") if isinstance(feature, dict) else None
    return tuple(map(str, names)) if isinstance(names, list) and names else None


def load_hub(path: str, config: str | None, split: str) -> Any:
    """A split as `datasets` gives it."""
    require("train", "Reading a data set of the Hub")
    import datasets

    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(path, config, split=split)
    except Exception as err:  # the library raises many kinds, of which none is a bug of ours
        where = f"data set {path}" + (f" ({config})" if config else "")
        raise BadInput(f"Cannot read {where}, split {split}: {' '.join(str(err).split())[:300]}") from err


def table_of(data: Any, name: str, columns: Columns) -> Table:
    """A table in memory: a data set of Hugging Face's, or a pandas DataFrame."""
    if not hasattr(data, "column_names"):
        import datasets

        data = datasets.Dataset.from_pandas(data, preserve_index=False)
    return _from_dataset(data, name, columns)


def _from_dataset(data: Any, name: str, columns: Columns) -> Table:
    if not len(data):
        raise BadInput(f"{name} is empty: there is nothing to learn from.")
    source = Source(name, "parquet", columns.text, columns.pair, inputs=columns.inputs)
    text, pair, label = _choose(source, columns.label, data.column_names)
    firsts, labels = list(data[text]), list(data[label])
    partners = None if pair is None else list(data[pair])
    for column, cells in ((text, firsts), (pair, partners or ())):
        bad = next((row for row, cell in enumerate(cells, 1) if not isinstance(cell, str)), None)
        if bad is not None:
            raise BadInput(f"{name}, row {bad}: column {column!r} holds no text.")
    texts: list[Text] = firsts if partners is None else list(zip(firsts, partners, strict=True))
    feature = data.features[label]
    names = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)
    lines = list(range(1, len(texts) + 1))
    return Table(name, texts, labels, lines, tuple(names) if names else None, inputs=_named(text, pair))
