"""The files that ELUE takes: predictions, and for a model that leaves early the layer of each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from offramp.writing import staged_file

__all__ = ["write_elue"]


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


def _write(file: Path, column: str, values: Iterable[object], overwrite: bool) -> Path:
    with staged_file(file, overwrite) as out:
        out.write(f"index\t{column}\r\n")
        out.writelines(f"{index}\t{value}\r\n" for index, value in enumerate(values))
    return file
