"""Submission files for GLUE and ELUE: predictions, and for a model with early exits the exit layer of each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from offramp.data.task import Task
from offramp.files.writing import staged_file

__all__ = ["elue_files", "elue_name", "glue_name", "write_elue", "write_glue"]


def glue_name(task: Task, split: str) -> str:
    """Return the official file name; MNLI has one for each of its two test sets."""
    if task.name == "mnli":
        return "MNLI-mm.tsv" if split.endswith("mismatched") else "MNLI-m.tsv"
    return f"{task.folder}.tsv"


def elue_name(task: Task) -> str:
    """Return the task name as ELUE spells it."""
    return task.name.removeprefix("elue-")


def elue_files(task: str, setting: object) -> list[str]:
    """Return the file names of a submission: predictions, their cost, and the exit layers unless it is static."""
    suffix = "" if setting is None else f"_{setting}"
    names = [f"{task}{suffix}.tsv", f"{task}{suffix}.json"]
    return names if setting is None else [*names, f"{task}_infer_exit_layer{suffix}.tsv"]


def write_glue(folder: Path, name: str, answers: Sequence[object], *, overwrite: bool = False) -> Path:
    """Write a GLUE file such as `SST-2.tsv`: rows from 0; labels in the task's spelling, scores with three decimals."""
    values = (f"{answer:.3f}" if isinstance(answer, float) else answer for answer in answers)
    return _write(folder / name, "prediction", values, overwrite, "\n")


def write_elue(
    folder: Path,
    task: str,
    answers: Sequence[object],
    exit_layers: Sequence[int] | None = None,
    setting: object = None,
    *,
    overwrite: bool = False,
) -> list[Path]:
    """Write `{task}.tsv`, or `{task}_{setting}.tsv` and `{task}_infer_exit_layer_{setting}.tsv`; rows from 0, CRLF.

    `setting` is the threshold or the patience; an answer is a label in the task's spelling, or a number.
    """
    suffix = "" if setting is None else f"_{setting}"
    files = [_write(folder / f"{task}{suffix}.tsv", "prediction", answers, overwrite)]
    if exit_layers is not None:
        files.append(_write(folder / f"{task}_infer_exit_layer{suffix}.tsv", "exit_layer", exit_layers, overwrite))
    return files


def _write(file: Path, column: str, values: Iterable[object], overwrite: bool, newline: str = "\r\n") -> Path:
    with staged_file(file, overwrite) as out:
        out.write(f"index\t{column}{newline}")
        out.writelines(f"{index}\t{value}{newline}" for index, value in enumerate(values))
    return file
