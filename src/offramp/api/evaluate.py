"""`offramp.evaluate` and `offramp.compare`: quality and speed of exits and exit policies."""

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
    from offramp.evaluation.compare import CurveComparison
    from offramp.evaluation.results import Evaluation

__all__ = ["Comparison", "EvaluationResult", "compare", "evaluate"]

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class EvaluationResult:
    """Result of `offramp.evaluate`; `print(result)` shows the tables.

    Attributes:
        results: all numbers: exits, curves, the operating point, times.
        folder: folder with the written files, or None.
    """

    results: Evaluation
    folder: Path | None = None

    @property
    def report(self) -> Path | None:
        """HTML report, or None if nothing was written."""
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
    backend: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    max_length: int | None = None,
    command: str = "",
    **data: Unpack[DataArguments],
) -> Any:
    """Measure the quality of every exit and the speed–quality trade-off of every exit policy.

    The model runs once over the data; policies are replayed on the recorded trace. A few points are also timed live.
    Without labels, predictions are compared with the full model's.

    Args:
        model: a model folder, or a name on the Hugging Face Hub.
        texts: texts, a table or a file; None for the dev rows of the training run.
        labels: labels of `texts` in memory.
        output: folder for results.json, curves, figures, the trace and report.html; None to write nothing.
        policy: exit policies to evaluate; one with a number ("entropy:0.2") is the operating point.
        thresholds: thresholds of the policy, instead of a fine grid.
        patience: patience values, instead of all.
        tolerance: for a regression, the maximum difference that counts as unchanged.
        elue_length: padded length for counting operations as in ELUE.
        reference: a model, or a file of texts and labels, to compare predictions with instead of the full model.
        live: whether to measure times.
        trace: a trace of the rows to read, or to record if the file does not exist.
        all_checkpoints: evaluate every checkpoint in the model folder, each into a folder in `output`.
        overwrite: replace the contents of `output`.
        backend: runtime for inference: "torch", or one that the model was exported for; None for the one that it was
            adapted for, else "torch".
        device: "cpu", "cuda", "mps", …; None for an accelerator if available.
        dtype: "float32" (default), "bfloat16" or "float16".
        threads: number of CPU threads; None for torch's choice.
        max_length: maximum tokens per text; longer texts are truncated.
        command: command line to show in the report.
        data: where the rows are: `task`, `data_dir`, `dataset`, `dataset_config`, `split`, `text_column`,
            `pair_column`, `label_column`, `metric`, `input_format`, `header`.

    Returns:
        An `EvaluationResult`; with `all_checkpoints` a dict of them by checkpoint.

    Examples:
        >>> result = offramp.evaluate("my-model", texts, labels, policy="entropy:0.2")
        >>> print(result.results.chosen.mean_layers, result.results.chosen.agreement)
    """
    from offramp.extras import require

    require("train", "Evaluating")
    from offramp.evaluation.evaluate import EvaluationOptions
    from offramp.files.writing import check_output_path

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
            check_output_path(target, overwrite)
        return _evaluate(str(model), str(model), rows, options, target, file, overwrite, command, backend, machine)
    from offramp.files.writing import writing
    from offramp.training.folder import checkpoints

    saved = checkpoints(Path(model))
    if not saved:
        raise BadInput(f"{model} has no checkpoints; train with `keep_checkpoints=True`.")
    if file is not None or target is None:
        raise BadValue("`all_checkpoints=True` writes one folder per checkpoint: set `output=` and remove `trace=`.")
    if not target.exists():
        check_output_path(target, overwrite)
    with writing(target):
        target.mkdir(exist_ok=True)
    return {
        name: _evaluate(
            str(folder), str(model), rows, options, target / name, None, overwrite, command, backend, machine
        )
        for name, folder in saved.items()
    }


def _evaluate(
    model: str,
    run_folder: str,
    rows: Any,
    options: Any,
    target: Path | None,
    file: Path | None,
    overwrite: bool,
    command: str,
    backend: str | None,
    machine: dict[str, Any],
) -> EvaluationResult:
    from offramp.data.rows import load_rows
    from offramp.evaluation.evaluate import evaluate as run
    from offramp.files.writing import staged_folder
    from offramp.report.run_folder import TRACE, run_files, write_run
    from offramp.runtimes.loading import load
    from offramp.training.folder import trained_policy
    from offramp.training.holdout import count_seen_in_training

    runner = load(model, backend, **machine)
    options = replace(options, preferred=trained_policy(Path(run_folder)))
    data = load_rows(model, runner.config, rows, "dev", run=Path(run_folder))
    seen = count_seen_in_training(Path(run_folder), data.rows.texts)
    note = f"{seen:,} of {len(data.rows):,} rows were trained on"
    if seen:
        data = replace(data, name=f"{data.name} ({note})")  # in results.json and in the report
    if target is None:
        with TemporaryDirectory() as folder_name:
            results = run(runner, data, options, file or Path(folder_name) / TRACE, command=command)
    else:
        if file is not None and file.resolve().parent == target.resolve():
            raise BadValue(f"{file} is in the folder that would be replaced; copy it to another folder first.")
        with staged_folder(target, overwrite, run_files(), "an evaluation") as folder:
            results = run(runner, data, options, file or folder / TRACE, command=command)
            write_run(folder, results)
    if seen:
        logger.warning("%s; scores on them are optimistic.", note)
    return EvaluationResult(results, target)


@dataclass(frozen=True)
class Comparison:
    """Result of `offramp.compare`; `print(comparison)` shows the tables.

    Attributes:
        compared: the curves and differences; the first run is the reference.
        policy: the exit policy that was compared.
    """

    compared: CurveComparison
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
    """Compare the speed–quality curves of several evaluations.

    Args:
        runs: folders written by `offramp.evaluate`, all on the same rows; the first is the reference.
        names: names of the runs; None for their folder names.
        policy: exit policy to compare; "layer" compares the single exits.
        elue_reference: reference curve for the ELUE score: a CSV file with the columns flops and score, or runs of
            static models, one per point.
        clamp: use the nearest end of the reference curve for points beyond it.
        output: folder for the figure and comparison.json; None to write nothing.
        overwrite: replace the contents of `output`.

    Returns:
        The comparison.

    Examples:
        >>> print(offramp.compare(["deebert-run", "romebert-run"]))
    """
    from offramp.extras import require

    require("train", "Comparing")
    from offramp.evaluation.compare import compare as run
    from offramp.files.managed_files import COMPARISON
    from offramp.files.writing import staged_folder
    from offramp.report.comparison import as_json, draw

    references = [Path(path) for path in elue_reference]
    compared, results = run([Path(path) for path in runs], names, policy, reference=references, clamp=clamp)
    if output is not None:
        with staged_folder(Path(output), overwrite, COMPARISON, "a comparison") as folder:
            draw(folder, compared, results, policy)
            (folder / "comparison.json").write_text(as_json(compared, policy), encoding="utf-8")
    return Comparison(compared, policy)
