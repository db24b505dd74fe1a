"""Write predictions as JSON lines, CSV, TSV or Parquet, chunk by chunk, so that memory stays bounded."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from offramp.errors import BadInput, BadValue, UnknownName
from offramp.files.writing import staged_path, writing

if TYPE_CHECKING:
    from offramp.answers.answer import Answers
    from offramp.data.row_fields import RowFields
    from offramp.model.config import AdaptiveConfig

__all__ = ["FORMATS", "PredictionTable", "check_format", "output_format", "write_file", "write_stream"]

FORMATS = ("jsonl", "csv", "tsv", "parquet")
EXTENSIONS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
EXTENSIONS[".pq"] = "parquet"
SEPARATORS = re.compile(r"[\t\n\r]+")


def check_format(form: str | None) -> None:
    """Raise if the output format is unknown."""
    if form is not None and form not in FORMATS:
        raise UnknownName("format", form, [*FORMATS, "glue", "elue", "squad"])


def output_format(file: Path, form: str | None) -> str:
    """Return the format that the extension of an output file stands for, or `form`; raise if they contradict."""
    is_gzip = file.suffix.lower() == ".gz"
    suffix = (file.with_suffix("") if is_gzip else file).suffix.lower()
    implied = EXTENSIONS.get(suffix)
    if implied is None and form is None and suffix:
        raise BadValue(
            f"{file}: unknown extension {suffix}. Use .jsonl, .csv, .tsv or .parquet, the first three also with .gz, "
            "or set `format=`."
        )
    if implied is not None and form not in (None, implied):
        raise BadValue(f"{file}: the extension stands for {implied}, but `format=` is {form}. Change one of them.")
    chosen = form or implied or "jsonl"
    if is_gzip and chosen == "parquet":
        raise BadValue(f"{file}: Parquet files are compressed already; remove .gz.")
    return chosen


@dataclass(frozen=True)
class PredictionTable:
    """The predictions of a model with the fields of their rows, such as ids."""

    stream: Iterable[Answers]
    config: AdaptiveConfig
    all_scores: bool = False
    row_fields: RowFields | None = None

    def chunks(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of every chunk; `scores` is a dict by label."""
        for answers in self.stream:
            rows = [answer.to_dict() for answer in answers]
            if self.all_scores:
                for row, answer in zip(rows, answers, strict=True):
                    row["scores"] = {label: round(score, 6) for label, score in answer.scores.items()}
            if self.row_fields is not None:
                rows = [{**fields, **row} for fields, row in zip(self.row_fields.take(len(rows)), rows, strict=True)]
            yield rows

    @property
    def columns(self) -> list[str]:
        """The names of the columns, without those of the scores."""
        return [*(self.row_fields.names if self.row_fields is not None else ()), *self.config.answer_type.fields]

    @property
    def score_labels(self) -> Sequence[str]:
        """The labels whose scores are written."""
        return self.config.labels if self.all_scores else ()


def write_file(table: PredictionTable, file: Path, form: str, overwrite: bool) -> int:
    """Write all predictions to a file, which appears when it is complete; return their number."""
    with staged_path(file, overwrite) as path:
        if form == "parquet":
            return _write_parquet(table, path, str(file))
        with ExitStack() as stack:
            binary: Any = stack.enter_context(path.open("wb"))
            if file.suffix.lower() == ".gz":
                binary = stack.enter_context(gzip.GzipFile("", "wb", fileobj=binary, mtime=0))
            out = stack.enter_context(io.TextIOWrapper(binary, encoding="utf-8", newline=""))
            return write_stream(table, out, form, str(file))


def write_stream(table: PredictionTable, out: TextIO, form: str, name: str) -> int:
    """Write and flush every chunk before the next one is read; return the number of predictions."""
    if form == "parquet":
        raise BadValue("Parquet is written to files only; set `output=` to a file that ends in .parquet.")
    to_lines = _json_lines if form == "jsonl" else _TableLines(form, table.columns, table.score_labels)
    if isinstance(to_lines, _TableLines):
        with writing(name):
            out.write(to_lines.header())
    count = 0
    for rows in table.chunks():
        with writing(name):
            out.write(to_lines(rows))
            out.flush()
        count += len(rows)
    return count


def _json_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@dataclass(frozen=True)
class _TableLines:
    """Formats rows as lines of CSV or TSV."""

    form: str
    columns: Sequence[str]
    labels: Sequence[str]

    def header(self) -> str:
        return self._join([[*self.columns, *(f"score_{label}" for label in self.labels)]])

    def __call__(self, rows: list[dict[str, Any]]) -> str:
        return self._join([[*map(_cell, self._values(row)), *self._scores(row)] for row in rows])

    def _values(self, row: dict[str, Any]) -> list[Any]:
        return [row[name] for name in self.columns]

    def _scores(self, row: dict[str, Any]) -> list[str]:
        return [f"{row['scores'][label]:.6f}" for label in self.labels]

    def _join(self, rows: list[list[str]]) -> str:
        if self.form == "tsv":  # has no quotes: tabs and line breaks would separate cells and rows
            return "".join("\t".join(SEPARATORS.sub(" ", cell) for cell in row) + "\n" for row in rows)
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(rows)
        return out.getvalue()


def _cell(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.6f}"
    return "" if value is None else str(value)


@dataclass
class _ParquetTypes:
    """Arrow types of the columns; ids are integers if the first one is."""

    table: PredictionTable
    first_row: dict[str, Any] = field(default_factory=dict)

    def schema(self) -> Any:
        import pyarrow as pa

        types = {"string": pa.string(), "json": pa.string(), "float": pa.float64(), "int": pa.int64()}
        types |= {f"{name}s": pa.list_(kind) for name, kind in list(types.items())}
        fields = self.table.config.answer_type.fields
        columns = {name: types[fields[name]] if name in fields else self._type(pa, name) for name in self.table.columns}
        return pa.schema(columns | {f"score_{label}": pa.float64() for label in self.table.score_labels})

    def _type(self, pa: Any, name: str) -> Any:
        value = self.first_row.get(name)
        if isinstance(value, list):
            return pa.list_(pa.string())
        return pa.int64() if isinstance(value, int) and not isinstance(value, bool) else pa.string()


def _write_parquet(table: PredictionTable, path: Path, name: str) -> int:
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    except ImportError as err:
        raise BadInput("Writing Parquet needs pyarrow: pip install pyarrow.") from err
    count, writer, schema = 0, None, _ParquetTypes(table).schema()
    try:
        for rows in table.chunks():
            if writer is None:
                schema = _ParquetTypes(table, rows[0]).schema()
                writer = ParquetWriter(path, schema)
            for row in rows if table.all_scores else ():
                row |= {f"score_{label}": score for label, score in row.pop("scores", {}).items()}
            with writing(name):
                writer.write_table(_arrow_table(pa, rows, schema, name, table.config.answer_type.fields))
            count += len(rows)
        with writing(name):
            writer = writer or ParquetWriter(path, schema)
            writer.close()
    finally:
        if writer is not None:
            writer.close()
    return count


def _arrow_table(pa: Any, rows: list[dict[str, Any]], schema: Any, name: str, fields: Mapping[str, str]) -> Any:
    if "id" in schema.names and schema.field("id").type == pa.string():
        rows = [row | {"id": None if row["id"] is None else str(row["id"])} for row in rows]
    if as_json := [name for name, kind in fields.items() if kind == "json"]:
        rows = [row | {name: json.dumps(row[name], ensure_ascii=False) for name in as_json} for row in rows]
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as err:
        raise BadInput(f"{name}: ids must all be integers, as the first one is, or all texts.") from err
