"""Write predictions as JSON lines or TSV, chunk by chunk, so that memory stays bounded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from offramp.errors import UnknownName
from offramp.files.writing import staged_file, writing

if TYPE_CHECKING:
    from offramp.answers.answer import Answer, Answers
    from offramp.model.config import AdaptiveConfig

__all__ = ["FORMATS", "check_format", "format_of_answers", "lines_of", "write_answers", "write_lines"]

FORMATS = ("jsonl", "tsv")


def format_of_answers(file: Path | None) -> str:
    """Return "tsv" for a .tsv file, else "jsonl"."""
    return "tsv" if file is not None and file.suffix == ".tsv" else "jsonl"


def check_format(form: str | None) -> None:
    """Raise if the output format is unknown."""
    if form is not None and form not in FORMATS:
        raise UnknownName("format", form, [*FORMATS, "glue", "elue", "squad"])


def write_answers(
    stream: Iterable[Answers], config: AdaptiveConfig, file: Path, form: str, all_scores: bool, overwrite: bool
) -> int:
    """Write all predictions to a file, which appears when it is complete; return their number."""
    with staged_file(file, overwrite) as out:
        return write_lines(lines_of(stream, config, form, all_scores), out, str(file)) - (form == "tsv")


def lines_of(stream: Iterable[Answers], config: AdaptiveConfig, form: str, all_scores: bool) -> Iterator[list[str]]:
    """Yield the lines of every chunk."""
    labels = config.labels if all_scores else ()
    if form == "tsv":
        yield ["\t".join([*config.answer_type.fields, *labels]) + "\n"]
        for answers in stream:
            yield [_tsv_line(answer, labels) for answer in answers]
        return
    for answers in stream:
        yield [_json_line(answer, all_scores) for answer in answers]


def write_lines(chunks: Iterator[list[str]], file: TextIO, name: str) -> int:
    """Write and flush every chunk before the next one is read; return the number of lines."""
    count = 0
    for lines in chunks:
        with writing(name):
            file.write("".join(lines))
            file.flush()
        count += len(lines)
    return count


def _json_line(answer: Answer, all_scores: bool) -> str:
    row = answer.to_dict()
    if all_scores:
        row["scores"] = {label: round(score, 6) for label, score in answer.scores.items()}
    return json.dumps(row, ensure_ascii=False) + "\n"


def _tsv_line(answer: Answer, labels: Sequence[str]) -> str:
    scores = [f"{answer.scores[name]:.6f}" for name in labels]
    return "\t".join([*map(_cell, answer.to_dict().values()), *scores]) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, float):
        return f"{value:.6f}"
    return "" if value is None else " ".join(str(value).split())  # tabs and line breaks separate cells and rows
