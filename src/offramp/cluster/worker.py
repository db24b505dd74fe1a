"""One worker of a batch job: it holds the model, reads a part, answers it, and writes the part's file at once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offramp.cluster.job import part_file, token_of
from offramp.cluster.parts import Part, read_part
from offramp.data.reading import Text, columns_of, text_of
from offramp.data.source import Source, text_columns
from offramp.errors import BadInput, BadModel, OfframpError
from offramp.files.writing import writing

__all__ = ["Work", "Worker"]

ID = "id"  # the answers' first column


@dataclass(frozen=True)
class Work:
    """What all workers of a job know."""

    model: str
    fingerprint: str  # a worker on another machine must find the same model
    machine: dict[str, Any]  # backend, dtype, threads …
    options: dict[str, Any]  # policy, max_layers …, as `Runner.stream` takes them
    source: Source  # the files' format and columns; each part names its file
    folder: str
    root: str  # made ids name files from there on
    id_column: str | None
    id_is_number: bool
    all_scores: bool
    stamps: dict[str, tuple[int, int]]  # bytes and date of every file, as the parts were cut
    token: str = ""  # of the job, as long as the folder is its


class Worker:
    """An actor of Ray Data's pool."""

    def __init__(self, work: Work):
        self.work, self.fault = work, ""
        try:
            self._load()
        except OfframpError as err:  # told with the first part: Ray would try again, and again
            self.fault = str(err)

    def _load(self) -> None:
        import pyarrow as pa

        from offramp.runtimes.loading import load

        self.runner = load(self.work.model, **self.work.machine)
        if self.runner.fingerprint != self.work.fingerprint:
            raise BadModel(f"{self.work.model} is another model on this machine than on the one that began the job.")
        self.schema = _schema(pa, self.work, self.runner.config)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Parts, one or more: how many rows each had, or the user's mistake that ended it."""
        told: dict[str, list[Any]] = {"part": [], "rows": [], "error": []}
        for written in batch["part"]:
            part, rows, error = Part(**json.loads(str(written))), 0, self.fault
            if not error:
                try:
                    rows = self.answer(part)
                except OfframpError as err:  # the same on every machine: no use in trying again
                    error = str(err) if part.file in str(err) else f"{part.file}, after line {part.before}: {err}"
            for name, value in zip(told, (part.number, rows, error), strict=True):
                told[name].append(value)
        return told

    def answer(self, part: Part) -> int:
        """Its answers as a Parquet file, which appears when it is complete; how many."""
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        folder = Path(self.work.folder)
        stage, final = folder / f".part-{part.number:06d}.{uuid.uuid4().hex}", part_file(folder, part.number)
        count = 0
        with writing(folder):
            try:
                with ParquetWriter(stage, self.schema) as writer:
                    for ids, answers in self._answers(part):
                        rows = [self._row(name, answer) for name, answer in zip(ids, answers, strict=True)]
                        writer.write_table(pa.Table.from_pylist(rows, schema=self.schema))
                        count += len(rows)
                if token_of(folder) != self.work.token:
                    raise BadInput(f"{folder} belongs to another job by now; this one ends here.")
                with suppress(FileNotFoundError):  # another driver of the same job was quicker, and tidied up
                    stage.replace(final)  # twice answered is still written once
                if not final.is_file():
                    raise BadInput(f"{folder} lost part {part.number} while it was written; run the job again.")
            finally:
                stage.unlink(missing_ok=True)
        return count

    def _answers(self, part: Part) -> Iterator[tuple[list[Any], Any]]:
        """Chunk by chunk: a packed file may be a part of any length."""
        ids: list[Any] = []
        found = self.runner.stream(self._texts(part, ids), progress=False, **self.work.options)
        for answers in found:
            mine, ids[:] = ids[: len(answers)], ids[len(answers) :]
            yield mine, answers

    def _texts(self, part: Part, ids: list[Any]) -> Iterator[Text]:
        """The part's texts; their ids are noted on the way."""
        work = self.work
        source = replace(work.source, file=part.file)
        columns = columns_of(source)
        if source.format == "parquet" and columns is not None:
            wanted = {*text_columns(source, columns), work.id_column}
            columns = [name for name in columns if name in wanted]
        stat = Path(part.file).stat()
        if work.stamps.get(part.file) != (stat.st_size, stat.st_mtime_ns):
            raise BadInput(f"{part.file} was changed while the job ran; begin anew.")
        made = str(Path(part.file).relative_to(work.root))
        for line, row in read_part(source, part, columns):
            ids.append(f"{made}:{line}" if work.id_column is None else self._id(source, line, row))
            yield text_of(source, line, row)

    def _id(self, source: Source, line: int, row: Any) -> Any:
        value = row.get(self.work.id_column) if isinstance(row, dict) else None
        if value is None:
            raise source.at(line, f"there is no {self.work.id_column}.")
        if not self.work.id_is_number:
            if isinstance(value, bytes):
                raise source.at(line, f"{self.work.id_column} holds bytes; write it as text.")
            return str(value)
        if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
            raise source.at(
                line, f"{self.work.id_column} is {value!r:.40}; the first row's is a whole number of 64 bits."
            )
        return value

    def _row(self, name: Any, answer: Any) -> dict[str, Any]:
        scores = answer.scores if self.work.all_scores else {}
        return {ID: name, **answer.to_dict(), **{f"score_{label}": value for label, value in scores.items()}}


def _schema(pa: Any, work: Work, config: Any) -> Any:
    """The answers' columns, the same in every part."""
    kinds = {"string": pa.string(), "strings": pa.list_(pa.string()), "float": pa.float64(), "int": pa.int64()}
    columns = {name: kinds[kind] for name, kind in config.answer_type.fields.items()}
    scores = {f"score_{label}": pa.float64() for label in config.labels} if work.all_scores else {}
    return pa.schema({ID: pa.int64() if work.id_is_number else pa.string(), **columns, **scores})
