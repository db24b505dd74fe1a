"""Predict an official test file and write the benchmark's submission files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from offramp.answers.answer import Answer
from offramp.core.runner import Runner
from offramp.data.labels import match_labels
from offramp.data.reading import Source, read_column_names
from offramp.data.task import Task
from offramp.data.task_files import read_split
from offramp.data.tasks import TASKS
from offramp.data.training_options import training_data_options
from offramp.errors import BadInput, BadValue, CannotWrite
from offramp.evaluation.traces.operations import count_parameters
from offramp.files.writing import check_output_path, staged_file, writing
from offramp.model.config import AdaptiveConfig
from offramp.originals.elue import ELUE_LENGTH, flops_per_exit
from offramp.originals.submissions.files import elue_files, elue_name, glue_name, write_elue, write_glue
from offramp.policies import Layer, Never, Patience, Policy

__all__ = ["submit"]

logger = logging.getLogger("offramp")

DIAGNOSTIC_TASKS = {"mnli": "ax"}  # a model trained for the first also predicts the second


def submit(
    runner: Runner,
    benchmark: str,
    task_name: str,
    file: Path,
    folder: Path,
    *,
    split: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> list[Path]:
    """Predict a test file and write the benchmark's files into a folder; `options` are those of `predict`."""
    task = TASKS[task_name]
    if (benchmark == "elue") is not task.name.startswith("elue-"):
        raise BadValue(f"Task {task.name} is not a {benchmark.upper()} task.")
    split = split or _split(task, file)
    _check_model(runner.name, task)
    _check_header(task, split, file)
    rows = read_split(task, split, None, file)
    if rows.skipped:
        raise BadInput(f"{rows.skipped[0]} A submission needs every row; fix the file.")
    if folder.exists() and not folder.is_dir():
        raise CannotWrite(f"{folder} is a file; `output=` must be a folder.")
    if not folder.exists():
        check_output_path(folder, overwrite)
    config = runner.config
    labels = match_labels(runner.name, config.labels, config.answer_type, task)
    policy = config.resolve_policy(options.get("policy"), options.pop("threshold", None))
    setting = _setting(policy)
    names = [glue_name(task, split)] if benchmark == "glue" else elue_files(elue_name(task), setting)
    for name in names:
        if folder.exists():
            check_output_path(folder / name, overwrite)
    if training_data_options(Path(runner.name)).get("task") is None:
        logger.warning("%s has no training task on record; make sure it was trained for %s.", runner.name, task.name)
    answers = list(runner.predict(rows.texts, **{**options, "policy": policy}))
    with writing(folder):
        folder.mkdir(exist_ok=True)
    values = _submission_values(answers, config.labels, labels)
    if benchmark == "glue":
        return [write_glue(folder, names[0], values, overwrite=overwrite)]
    layers = [answer.exit_layer for answer in answers]
    files = write_elue(
        folder,
        elue_name(task),
        values,
        None if setting is None else layers,
        setting,
        overwrite=overwrite,
    )
    return [*files, *_write_cost(config, layers, files[0], static=setting is None, overwrite=overwrite)]


def _check_model(model: str, task: Task) -> None:
    """Raise if the model was trained for another task: its predictions would fit the file, but be wrong."""
    trained = training_data_options(Path(model)).get("task")
    if trained is None:
        return
    allowed = (trained.removeprefix("elue-"), DIAGNOSTIC_TASKS.get(trained))  # three tasks are in both benchmarks
    if task.name.removeprefix("elue-") not in allowed:
        raise BadInput(f"{model} was trained for {trained}, but this is a submission for {task.name}.")


def _check_header(task: Task, split: str, file: Path) -> None:
    """Raise if the file belongs to another task: its texts may be in the same columns, under other names."""
    layout = task.splits.get(split)
    if layout is None or not layout.has_header or not file.is_file():
        return  # `read_split` raises
    header = read_column_names(Source(str(file), "tsv")) or []
    columns = [column for column in (layout.text, layout.pair) if column is not None]
    names = [header[column] for column in columns if column < len(header)]
    if names != list(task.inputs):
        raise BadInput(
            f"{file} has the columns {', '.join(header)}; the {split} file of {task.name} has "
            f"{' and '.join(task.inputs)} in column {' and '.join(str(column + 1) for column in columns)}. "
            "Is it the file of another task?"
        )


def _split(task: Task, file: Path) -> str:
    """Return the test split with this file name; raise if the name matches none and there are several."""
    matches = [split for split in task.test_splits if task.splits[split].file == file.name]
    if matches:
        return matches[0]
    if len(task.test_splits) > 1:
        raise BadInput(f"Cannot tell the split of {file}; set `split=` to {' or '.join(task.test_splits)}.")
    return task.test_splits[0]


def _submission_values(
    answers: list[Answer], model_labels: tuple[str, ...], task_labels: tuple[str, ...]
) -> list[object]:
    """Return labels in the task's spelling, or scores for a regression."""
    names = dict(zip(model_labels, task_labels, strict=True))
    return [answer.score if answer.label is None else names[str(answer.label)] for answer in answers]


def _setting(policy: Policy) -> object:
    """Return the number in ELUE's file names; None for a static model."""
    if isinstance(policy, Never | Layer):
        return None
    threshold = getattr(policy, "threshold", None)
    if isinstance(threshold, tuple):
        return "-".join(f"{number:g}" for number in threshold)
    return policy.patience if isinstance(policy, Patience) else policy.parameter


def _write_cost(config: AdaptiveConfig, layers: list[int], file: Path, *, static: bool, overwrite: bool) -> list[Path]:
    """Write the FLOPs and parameters that ELUE requires, if its FLOPs counter supports the model family."""
    flops = flops_per_exit(config, ELUE_LENGTH, static=static)
    if flops is None:
        return []
    flops_by_layer = {point.layer: count for point, count in zip(config.exit_points, flops, strict=True)}
    mean_flops = float(np.mean([flops_by_layer[layer] for layer in layers]))
    parameters = count_parameters(config)
    content = {file.name: {"mflops": round(mean_flops / 1e6, 2), "mparams": round(parameters / 1e6, 2)}}
    cost_file = file.with_suffix(".json")
    with staged_file(cost_file, overwrite) as out:
        out.write(json.dumps(content, indent=1) + "\n")
    return [cost_file]
