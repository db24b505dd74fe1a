"""The files that GLUE and ELUE take: predictions, and for a model that leaves early the layer of each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from offramp.data.task import Task
from offramp.files.writing import staged_file

__all__ = ["elue_files", "elue_name", "glue_name", "write_elue", "write_glue"]


def glue_name(task: Task, split: str) -> str:
    """The official file's name: MNLI's two halves have one each."""
    if task.name == "mnli":
        return "MNLI-mm.tsv" if split.endswith("mismatched") else "MNLI-m.tsv"
    return f"{task.folder}.tsv"


def elue_name(task: Task) -> str:
    """The task as ELUE writes it."""
    return task.name.removeprefix("elue-")


def elue_files(task: str, setting: object) -> list[str]:
    """What a submission consists of: predictions, their cost, and the exit layers unless it is static."""
    tail = "" if setting is None else f"_{setting}"
    names = [f"{task}{tail}.tsv", f"{task}{tail}.json"]
    return names if setting is None else [*names, f"{task}_infer_exit_layer{tail}.tsv"]


def write_glue(folder: Path, name: str, answers: Sequence[object], *, overwrite: bool = False) -> Path:
    """`SST-2.tsv` and its like: rows from 0; labels as the task spells them, values with three decimals."""
    written = (f"{answer:.3f}" if isinstance(answer, float) else answer for answer in answers)
    return _write(folder / name, "prediction", written, overwrite, "\n")


def write_elue(
    folder: Path,
    task: str,
    answers: Sequence[object],
    exit_layers: Sequence[int] | None = None,
    setting: object = None,
    *,
    overwrite: bool = False,
) -> list[Path]:
    """`{task}.tsv`, or `{task}_{setting}.tsv` and `{task}_infer_exit_layer_{setting}.tsv`; rows from 0, CRLF.

    `setting` is the threshold or the patience; an answer is a label as the task spells it, or a number.
    """
    tail = "" if setting is None else f"_{setting}"
    written = [_write(folder / f"{task}{tail}.tsv", "prediction", answers, overwrite)]
    if exit_layers is not None:
        written.append(_write(folder / f"{task}_infer_exit_layer{tail}.tsv", "exit_layer", exit_layers, overwrite))
    return written


def _write(file: Path, column: str, values: Iterable[object], overwrite: bool, end: str = "\r\n") -> Path:
    with staged_file(file, overwrite) as out:
        out.write(f"index\t{column}{end}")
        out.writelines(f"{index}\t{value}{end}" for index, value in enumerate(values))
    return file
