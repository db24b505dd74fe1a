"""From an official test file to the files that its benchmark takes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from offramp.answers.answer import Answer
from offramp.core.runner import Runner
from offramp.data.folder import read_split
from offramp.data.labels import fit
from offramp.data.reading import Source, columns_of
from offramp.data.task import Task
from offramp.data.tasks import TASKS
from offramp.data.trained import data_of_training
from offramp.errors import BadInput, BadValue, CannotWrite
from offramp.evaluation.traces.operations import count_parameters
from offramp.files.writing import check_free, staged_file, writing
from offramp.model.config import AdaptiveConfig
from offramp.originals.elue import LENGTH, flops_per_exit
from offramp.originals.submissions.files import elue_files, elue_name, glue_name, write_elue, write_glue
from offramp.policies import Layer, Never, Patience, Policy

__all__ = ["KINDS", "submit"]

logger = logging.getLogger("offramp")

ANSWERED_BY = {"mnli": "ax"}  # a model of the first answers the second, too
KINDS = {"glue": "GLUE's files", "elue": "ELUE's files, the exit layers and the cost beside them"}


def submit(
    runner: Runner,
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
    _check_model(runner.name, task)
    _check_header(task, split, file)
    rows = read_split(task, split, None, file)
    if rows.skipped:
        raise BadInput(f"{rows.skipped[0]} A submission needs every row; mend the file.")
    if folder.exists() and not folder.is_dir():
        raise CannotWrite(f"{folder} is a file; name a folder for the submission.")
    if not folder.exists():
        check_free(folder, overwrite)
    config = runner.config
    labels = fit(runner.name, config.labels, config.answer_type, task)
    policy = config.choose(options.get("policy"), options.pop("threshold", None))
    setting = _setting(policy)
    names = [glue_name(task, split)] if kind == "glue" else elue_files(elue_name(task), setting)
    for name in names:
        if folder.exists():
            check_free(folder / name, overwrite)
    if data_of_training(Path(runner.name)).get("task") is None:
        logger.warning("Nothing says that %s was trained for %s; it is taken for such a model.", runner.name, task.name)
    answers = list(runner.predict(rows.texts, **{**options, "policy": policy}))
    with writing(folder):
        folder.mkdir(exist_ok=True)
    if kind == "glue":
        return [write_glue(folder, names[0], _spelled(answers, config.labels, labels), overwrite=overwrite)]
    layers = [answer.exit_layer for answer in answers]
    files = write_elue(
        folder,
        elue_name(task),
        _spelled(answers, config.labels, labels),
        None if setting is None else layers,
        setting,
        overwrite=overwrite,
    )
    return [*files, *_cost(config, layers, files[0], static=setting is None, overwrite=overwrite)]


def _check_model(model: str, task: Task) -> None:
    """Refuse a model of another task: its answers fit the file and mean something else."""
    trained = data_of_training(Path(model)).get("task")
    if trained is None:
        return
    own = (trained.removeprefix("elue-"), ANSWERED_BY.get(trained))  # three tasks are in both suites
    if task.name.removeprefix("elue-") not in own:
        raise BadInput(f"{model} was trained for {trained}, and this is a submission for {task.name}.")


def _check_header(task: Task, split: str, file: Path) -> None:
    """Refuse another task's file: texts stand where this one's do, under other names."""
    layout = task.splits.get(split)
    if layout is None or not layout.has_header or not file.is_file():
        return  # the reader says what is wrong
    header = columns_of(Source(str(file), "tsv")) or []
    places = [place for place in (layout.text, layout.pair) if place is not None]
    found = [header[place] for place in places if place < len(header)]
    if found != list(task.inputs):
        raise BadInput(
            f"{file} has the columns {', '.join(header)}; the {split} file of {task.name} has "
            f"{' and '.join(task.inputs)} in column {' and '.join(str(place + 1) for place in places)}. "
            "Is it another task's?"
        )


def _split(task: Task, file: Path) -> str:
    """The test split whose file this is, by its name; of several that is a must."""
    named = [split for split in task.test_splits if task.splits[split].file == file.name]
    if named:
        return named[0]
    if len(task.test_splits) > 1:
        raise BadInput(f"Is {file} {' or '.join(task.test_splits)}? Say so with `split=`.")
    return task.test_splits[0]


def _spelled(answers: list[Answer], own: tuple[str, ...], labels: tuple[str, ...]) -> list[object]:
    """Labels as the task spells them; values as they are."""
    names = dict(zip(own, labels, strict=True))
    return [answer.score if answer.label is None else names[str(answer.label)] for answer in answers]


def _setting(policy: Policy) -> object:
    """The number in ELUE's file names; None for a static model."""
    if isinstance(policy, Never | Layer):
        return None
    threshold = getattr(policy, "threshold", None)
    if isinstance(threshold, tuple):
        return "-".join(f"{number:g}" for number in threshold)
    return policy.patience if isinstance(policy, Patience) else policy.parameter


def _cost(config: AdaptiveConfig, layers: list[int], file: Path, *, static: bool, overwrite: bool) -> list[Path]:
    """The two numbers that ELUE asks for beside a file, where its counter knows the family."""
    costs = flops_per_exit(config, LENGTH, alone=static)
    if costs is None:
        return []
    at = {point.layer: cost for point, cost in zip(config.exit_points, costs, strict=True)}
    flops = float(np.mean([at[layer] for layer in layers]))
    size = count_parameters(config)
    figures = {file.name: {"mflops": round(flops / 1e6, 2), "mparams": round(size / 1e6, 2)}}
    beside = file.with_suffix(".json")
    with staged_file(beside, overwrite) as out:
        out.write(json.dumps(figures, indent=1) + "\n")
    return [beside]
