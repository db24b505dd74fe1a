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
from offramp.tasks.submission import elue_name, glue_name, write_elue, write_glue
from offramp.writing import staged_file

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
    labels = fit(str(model.name_or_path), model.config.labels, model.config.problem, task)
    policy = model.choose(options.get("policy"), options.pop("threshold", None))
    answers = list(model.predict(rows.texts, **{**options, "policy": policy}))
    folder.mkdir(exist_ok=True)
    if kind == "glue":
        return [write_glue(folder, glue_name(task, split), _spelled(answers, model, labels), overwrite=overwrite)]
    return _elue(model, task, answers, _spelled(answers, model, labels), policy, folder, overwrite)


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


def _elue(
    model: AdaptiveModel,
    task: Task,
    answers: list[Answer],
    spelled: list[object],
    policy: Policy,
    folder: Path,
    overwrite: bool,
) -> list[Path]:
    layers = [one.exit_layer for one in answers]
    static = isinstance(policy, Never | Layer)
    setting = policy.patience if isinstance(policy, Patience) else None if static else parameter(policy)
    files = write_elue(folder, elue_name(task), spelled, None if static else layers, setting, overwrite=overwrite)
    costs = flops_per_exit(model.config, LENGTH)
    if costs is not None:
        at = {point.layer: cost for point, cost in zip(model.stepper.exits, costs, strict=True)}
        flops = float(np.mean([at[layer] for layer in layers]))
        size = sum(value.numel() for value in model.parameters())
        told = {files[0].name: {"mflops": round(flops / 1e6, 2), "mparams": round(size / 1e6, 2)}}
        beside = folder / f"{files[0].stem}.json"
        with staged_file(beside, overwrite) as out:
            out.write(json.dumps(told, indent=1) + "\n")
        files.append(beside)
    return files
