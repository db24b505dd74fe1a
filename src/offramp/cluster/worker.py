"""A worker of a batch job: holds the model, reads a part of the input and writes its predictions."""

from __future__ import annotations

import io
import json
import platform
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from offramp.cluster.input_files import UnchangedFiles, name_in
from offramp.cluster.job import owns_folder, part_metadata, part_name, remove_own_part
from offramp.cluster.output_folder import open_folder
from offramp.cluster.parts import Part, PartReader
from offramp.cluster.shipping import ShippedModel, unpacked
from offramp.data.reading import Text, extract_text, read_column_names
from offramp.data.source import Source, text_columns
from offramp.errors import BadInput, BadModel, OfframpError
from offramp.files.error_lines import first_line

__all__ = ["Worker", "WorkerSettings"]

ID = "id"  # the first column of the output


@dataclass(frozen=True)
class WorkerSettings:
    """The settings that all workers of a job share."""

    model: str | ShippedModel  # a name on the Hub, or the files of a folder
    fingerprint: str  # every machine must load the same model
    machine: dict[str, Any]  # backend, dtype, threads …
    options: dict[str, Any]  # policy, max_layers …: arguments of `Runner.stream`
    source: Source  # the files' format and columns; each part names its file
    folder: str  # path or URL
    root: str  # generated ids contain file names relative to this folder
    id_column: str | None
    id_is_number: bool
    all_scores: bool
    versions: dict[str, str]  # of each file when it was split
    checksums: dict[str, tuple[int, str]]  # size and checksum of each file
    token: str = ""  # of the job that owns the folder


class Worker:
    """An actor of Ray Data's pool."""

    def __init__(self, settings: WorkerSettings):
        self.settings, self.error = settings, ""
        self.reader, self.files = PartReader(), UnchangedFiles(settings.versions, settings.checksums)
        try:
            self._load()
        except OfframpError as err:  # reported with the first part; if it were raised here, Ray would retry forever
            self.error = str(err)
        except Exception as err:
            self.error = f"A worker on {platform.node()} cannot start ({type(err).__name__}: {first_line(err)})."

    def _load(self) -> None:
        import pyarrow as pa

        from offramp.runtimes.loading import load

        self.folder = open_folder(self.settings.folder)
        model = self.settings.model
        with nullcontext(model) if isinstance(model, str) else unpacked(model) as folder:
            self.runner = load(folder, **self.settings.machine)
        if self.runner.fingerprint != self.settings.fingerprint:
            name = model if isinstance(model, str) else model.name
            raise BadModel(f"{name} differs between this machine and the one that started the job.")
        self.schema = _schema(pa, self.settings, self.runner.config)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Predict parts; return the number of rows of each, or an error message."""
        results: dict[str, list[Any]] = {"part": [], "rows": [], "error": []}
        for part_json in batch["part"]:
            part, rows, error = Part(**json.loads(str(part_json))), 0, self.error
            if not error:
                try:
                    rows = self.predict(part)
                except OfframpError as err:  # returned, because a retry would fail in the same way
                    error = str(err) if part.file in str(err) else f"{part.file}, after line {part.before}: {err}"
            for name, value in zip(results, (part.number, rows, error), strict=True):
                results[name].append(value)
        return results

    def predict(self, part: Part) -> int:
        """Write a part's predictions to a Parquet file; return the number of rows."""
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        count, file = 0, io.BytesIO()
        with ParquetWriter(file, self.schema) as writer:
            for ids, answers in self._answers(part):
                rows = [self._row(row_id, answer) for row_id, answer in zip(ids, answers, strict=True)]
                writer.write_table(pa.Table.from_pylist(rows, schema=self.schema))
                count += len(rows)
        self._check_folder()
        self.folder.write(part_name(part.number), file.getvalue())
        try:
            self._check_folder()
        except BadInput:  # overwritten meanwhile: the new job must not find a part of this one
            remove_own_part(self.folder, part.number, self.settings.token)
            raise
        return count

    def _check_folder(self) -> None:
        if not owns_folder(self.folder, self.settings.token):
            raise BadInput(f"{self.folder} was overwritten by another job; this job stops.")

    def _answers(self, part: Part) -> Iterator[tuple[list[Any], Any]]:
        """Yield ids and predictions in chunks, because a gzip file is one part of any length."""
        ids: list[Any] = []
        for answers in self.runner.stream(self._texts(part, ids), progress=False, **self.settings.options):
            chunk_ids, ids[:] = ids[: len(answers)], ids[len(answers) :]
            yield chunk_ids, answers

    def _texts(self, part: Part, ids: list[Any]) -> Iterator[Text]:
        """Yield the part's texts, and append their ids to `ids`."""
        settings = self.settings
        source = replace(settings.source, file=part.file)
        columns = read_column_names(source)
        if source.format == "parquet" and columns is not None:
            needed = {*text_columns(source, columns), settings.id_column}
            columns = [name for name in columns if name in needed]
        self.files.check(part.file)
        file_name = name_in(settings.root, part.file)
        for line, row in self.reader.read(source, part, columns, settings.id_column):
            ids.append(f"{file_name}:{line}" if settings.id_column is None else self._id(source, line, row))
            yield extract_text(source, line, row)

    def _id(self, source: Source, line: int, row: Any) -> Any:
        column = self.settings.id_column
        value = row.get(column) if isinstance(row, dict) else None
        if value is None:
            raise source.error_at(line, f"field {column!r} is missing.")
        if not self.settings.id_is_number:
            if isinstance(value, bytes):
                raise source.error_at(line, f"field {column!r} contains bytes; use text ids.")
            return str(value)
        if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
            raise source.error_at(
                line, f"field {column!r} must be a 64-bit integer as in the first row, got {value!r:.40}."
            )
        return value

    def _row(self, row_id: Any, answer: Any) -> dict[str, Any]:
        scores = answer.scores if self.settings.all_scores else {}
        fields = answer.to_dict()
        for name, kind in self.runner.config.answer_type.fields.items():
            if kind == "json":
                fields[name] = json.dumps(fields[name], ensure_ascii=False)
        return {ID: row_id, **fields, **{f"score_{label}": value for label, value in scores.items()}}


def _schema(pa: Any, settings: WorkerSettings, config: Any) -> Any:
    """Return the output schema, the same for every part."""
    types = {"string": pa.string(), "json": pa.string(), "float": pa.float64(), "int": pa.int64()}
    types |= {f"{name}s": pa.list_(kind) for name, kind in list(types.items())}
    columns = {name: types[dtype] for name, dtype in config.answer_type.fields.items()}
    scores = {f"score_{label}": pa.float64() for label in config.labels} if settings.all_scores else {}
    ids = {ID: pa.int64() if settings.id_is_number else pa.string()}
    return pa.schema({**ids, **columns, **scores}, metadata=part_metadata(settings.token))
