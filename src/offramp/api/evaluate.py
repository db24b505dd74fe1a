"""`offramp.evaluate` and `offramp.compare`: what exits are worth, what policies cost, side by side."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack

from offramp.api.options import DataArguments, check_counts, data_options
from offramp.errors import BadInput, BadValue

if TYPE_CHECKING:
    from offramp.evaluation.compare import Compared
    from offramp.evaluation.results import Evaluation

__all__ = ["Comparison", "EvaluationResult", "compare", "evaluate"]

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class EvaluationResult:
    """What was found on one data set: `results` has every number, `folder` the files, where some were written."""

    results: Evaluation
    folder: Path | None = None

    @property
    def report(self) -> Path | None:
        """One HTML page."""
        return None if self.folder is None else self.folder / "report.html"

    def __str__(self) -> str:
        from offramp.report.tables import summary

        return summary(self.results)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def evaluate(
    model: str | os.PathLike[str],
    texts: Any = None,
    labels: Sequence[Any] | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    policy: str | Sequence[str] = (),
    thresholds: Sequence[float] | None = None,
    patience: Sequence[int] | None = None,
    tolerance: float | None = None,
    elue_length: int = 128,
    reference: str | None = None,
    live: bool = True,
    trace: str | os.PathLike[str] | None = None,
    all_checkpoints: bool = False,
    overwrite: bool = False,
    backend: str = "torch",
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    max_length: int | None = None,
    command: str = "",
    **data: Unpack[DataArguments],
) -> Any:
    """What every exit is worth and what every policy costs, from one pass over the data.

    Without labels, answers are compared with the full model's. Policies are replayed on the trace of that pass; a few
    points are run live, for their seconds.

    Args:
        model: a model folder, or a name on the Hub.
        texts: texts, a table or a file; None: the dev rows of its training.
        labels: of texts in memory.
        output: a folder for results.json, curves, figures, the trace and report.html; None: nothing is written.
        policy: policies to draw; one with its number ("entropy:0.2") is the operating point.
        thresholds: of the one policy that is drawn, instead of a fine grid.
        patience: counts to draw, instead of all.
        tolerance: of a regression, how far apart two values still agree.
        elue_length: tokens that ELUE's count pads to.
        reference: a model, or a file of texts and labels, to compare answers with instead of the full model.
        live: measure seconds.
        trace: a trace of the rows to read, or to record there.
        all_checkpoints: every checkpoint in the model's folder, each in a folder of `output`; returns a dict.
        overwrite: replace what `output` holds.
        backend: what runs it: torch, or what it was exported for.
        device: cpu, cuda, mps …; None: an accelerator if available.
        dtype: float32, bfloat16 or float16.
        threads: CPU threads.
        max_length: maximum tokens of a text; the rest is cut.
        command: what the report says made it.
        data: where the rows are: task, data_dir, dataset, dataset_config, split, text_column, pair_column,
            label_column, metric, input_format, header.

    >>> result = offramp.evaluate("my-model", texts, labels, policy="entropy:0.2")    # doctest: +SKIP
    >>> result.results.chosen.mean_layers, result.results.chosen.agreement           # doctest: +SKIP
    """
    from offramp.extras import require

    require("train", "Evaluating")
    from offramp.evaluation.evaluate import EvaluationOptions
    from offramp.files.writing import check_free

    check_counts(threads=threads)
    names = (policy,) if isinstance(policy, str) else tuple(policy)
    steps = None if thresholds is None else tuple(thresholds)
    counts = None if patience is None else tuple(patience)
    options = EvaluationOptions(names, steps, counts, tolerance, elue_length, live, reference)
    machine = {"device": device, "dtype": dtype, "threads": threads, "max_length": max_length}
    rows = data_options(texts, labels, data)
    target = None if output is None else Path(output)
    file = None if trace is None else Path(trace)
    if not all_checkpoints:
        if target is not None:
            check_free(target, overwrite)
        return _one(str(model), str(model), rows, options, target, file, overwrite, command, backend, machine)
    from offramp.files.writing import writing
    from offramp.training.folder import checkpoints

    saved = checkpoints(Path(model))
    if not saved:
        raise BadInput(f"{model} has no checkpoints; train with `keep_checkpoints=True` to evaluate them.")
    if file is not None or target is None:
        raise BadValue(
            "With `all_checkpoints=True` every run needs its own folder: give `output=`, leave `trace=` out."
        )
    if not target.exists():
        check_free(target, overwrite)
    with writing(target):
        target.mkdir(exist_ok=True)
    return {
        name: _one(str(folder), str(model), rows, options, target / name, None, overwrite, command, backend, machine)
        for name, folder in saved.items()
    }


def _one(
    model: str,
    trained: str,
    rows: Any,
    options: Any,
    target: Path | None,
    file: Path | None,
    overwrite: bool,
    command: str,
    backend: str,
    machine: dict[str, Any],
) -> EvaluationResult:
    from offramp.data.rows import rows_for
    from offramp.evaluation.evaluate import evaluate as run
    from offramp.files.writing import staged_folder
    from offramp.report.run_folder import TRACE, run_files, write_run
    from offramp.runtimes.loading import load
    from offramp.training.holdout import seen_in_training

    runner = load(model, backend, **machine)
    data = rows_for(model, runner.config, rows, "dev", run=Path(trained))
    seen = seen_in_training(Path(trained), data.rows.texts)
    note = f"{seen:,} of {len(data.rows):,} rows were trained on"
    if seen:
        data = replace(data, name=f"{data.name} ({note})")  # in results.json and in the report
    if target is None:
        with TemporaryDirectory() as place:
            results = run(runner, data, options, file or Path(place) / TRACE, command=command)
    else:
        if file is not None and file.resolve().parent == target.resolve():
            raise BadValue(f"{file} lies in the folder that is to be replaced; copy it to another place first.")
        with staged_folder(target, overwrite, run_files(), "an evaluation") as folder:
            results = run(runner, data, options, file or folder / TRACE, command=command)
            write_run(folder, results)
    if seen:
        logger.warning("%s: what it scores on them says nothing about others.", note)
    return EvaluationResult(results, target)


@dataclass(frozen=True)
class Comparison:
    """Curves of several evaluations of the same rows, the first being what the others are measured against."""

    compared: Compared
    policy: str

    def __str__(self) -> str:
        from offramp.report.comparison import tables

        return tables(self.compared, self.policy)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def compare(
    runs: Sequence[str | os.PathLike[str]],
    *,
    names: Sequence[str] | None = None,
    policy: str = "entropy",
    elue_reference: Sequence[str | os.PathLike[str]] = (),
    clamp: bool = False,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> Comparison:
    """Lay the curves of several evaluations side by side.

    Args:
        runs: folders that `offramp.evaluate` wrote, all about the same rows.
        names: what the runs are called (their folders' names).
        policy: whose curves; "layer": the exits alone.
        elue_reference: a CSV file with the columns flops and score, or static runs: adds ELUE's score.
        clamp: beyond the reference curve, take its nearest end.
        output: a folder for the figure and comparison.json.
        overwrite: replace what it holds.

    >>> print(offramp.compare(["deebert-run", "romebert-run"]))                       # doctest: +SKIP
    """
    from offramp.extras import require

    require("train", "Comparing")
    from offramp.evaluation.compare import compare as run
    from offramp.files.managed_files import COMPARISON
    from offramp.files.writing import staged_folder
    from offramp.report.comparison import as_json, draw

    references = [Path(one) for one in elue_reference]
    compared, results = run([Path(one) for one in runs], names, policy, reference=references, clamp=clamp)
    if output is not None:
        with staged_folder(Path(output), overwrite, COMPARISON, "a comparison") as folder:
            draw(folder, compared, results, policy)
            (folder / "comparison.json").write_text(as_json(compared, policy), encoding="utf-8")
    return Comparison(compared, policy)
