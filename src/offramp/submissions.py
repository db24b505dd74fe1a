"""From an official test file to the files that its benchmark takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from offramp.elue import LENGTH, flops_per_exit
from offramp.errors import BadInput, BadValue, CannotWrite
from offramp.grids import parameter
from offramp.model import AdaptiveModel
from offramp.policies import Layer, Never, Patience, Policy
from offramp.prediction import Answer
from offramp.tasks import TASKS, Task
from offramp.tasks.folder import read_split
from offramp.tasks.labels import fit
from offramp.tasks.submission import elue_files, elue_name, glue_name, write_elue, write_glue
from offramp.writing import check_free, staged_file, writing

__all__ = ["KINDS", "submit"]

KINDS = {"glue": "GLUE's files", "elue": "ELUE's files, the exit layers and the cost beside them"}


def submit(
    model: AdaptiveModel,
    kind: str,
    task_name: str,
    file: Path,
    folder: Path,
    *,
    split: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> list[Path]:
    """Answer a test file and write the benchmark's files into a folder; `options` are those of `predict`."""
    task = TASKS[task_name]
    if (kind == "elue") is not task.name.startswith("elue-"):
        raise BadValue(f"Task {task.name} is not one of {kind.upper()}'s; its files have another form.")
    split = split or _split(task, file)
    rows = read_split(task, split, None, file)
    if rows.skipped:
        raise BadInput(f"{rows.skipped[0]} A submission needs every row; mend the file.")
    if folder.exists() and not folder.is_dir():
        raise CannotWrite(f"{folder} is a file; name a folder for the submission.")
    if not folder.exists():
        check_free(folder, overwrite)
    labels = fit(str(model.name_or_path), model.config.labels, model.config.problem, task)
    policy = model.choose(options.get("policy"), options.pop("threshold", None))
    setting = _setting(policy)
    names = [glue_name(task, split)] if kind == "glue" else elue_files(elue_name(task), setting)
    for name in names:
        if folder.exists():
            check_free(folder / name, overwrite)
    answers = list(model.predict(rows.texts, **{**options, "policy": policy}))
    with writing(folder):
        folder.mkdir(exist_ok=True)
    if kind == "glue":
        return [write_glue(folder, names[0], _spelled(answers, model, labels), overwrite=overwrite)]
    layers = [one.exit_layer for one in answers]
    files = write_elue(
        folder,
        elue_name(task),
        _spelled(answers, model, labels),
        None if setting is None else layers,
        setting,
        overwrite=overwrite,
    )
    return [*files, *_cost(model, layers, files[0], static=setting is None, overwrite=overwrite)]


def _split(task: Task, file: Path) -> str:
    """The test split whose file this is, by its name; of several that is a must."""
    named = [split for split in task.test_splits if task.splits[split].file == file.name]
    if named:
        return named[0]
    if len(task.test_splits) > 1:
        raise BadInput(f"Is {file} {' or '.join(task.test_splits)}? Say so with --split.")
    return task.test_splits[0]


def _spelled(answers: list[Answer], model: AdaptiveModel, labels: tuple[str, ...]) -> list[object]:
    """Labels as the task spells them; values as they are."""
    names = dict(zip(model.config.labels, labels, strict=True))
    return [one.score if one.label is None else names[str(one.label)] for one in answers]


def _setting(policy: Policy) -> object:
    """The number in ELUE's file names; None for a static model."""
    if isinstance(policy, Never | Layer):
        return None
    return policy.patience if isinstance(policy, Patience) else parameter(policy)


def _cost(model: AdaptiveModel, layers: list[int], file: Path, *, static: bool, overwrite: bool) -> list[Path]:
    """The two numbers that ELUE asks for beside a file, where its counter knows the family."""
    costs = flops_per_exit(model.config, LENGTH, alone=static)
    if costs is None:
        return []
    at = {point.layer: cost for point, cost in zip(model.stepper.exits, costs, strict=True)}
    flops = float(np.mean([at[layer] for layer in layers]))
    size = sum(value.numel() for value in model.parameters())
    told = {file.name: {"mflops": round(flops / 1e6, 2), "mparams": round(size / 1e6, 2)}}
    beside = file.with_suffix(".json")
    with staged_file(beside, overwrite) as out:
        out.write(json.dumps(told, indent=1) + "\n")
    return [beside]
