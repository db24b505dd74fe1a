"""`offramp.export`, `offramp.tune` and `offramp.benchmark`: other runtimes and their speed on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from offramp.api.options import (
    CalibrationArguments,
    DataArguments,
    check_counts,
    data_options,
    make_guarantee,
    split_arguments,
)
from offramp.errors import BadValue

if TYPE_CHECKING:
    from offramp.policies import Policy

__all__ = ["BenchmarkResult", "ExportResult", "TuneResult", "benchmark", "export", "tune"]


@dataclass(frozen=True)
class ExportResult:
    """Result of `offramp.export`.

    Attributes:
        folder: folder of the export, in the model folder.
        backend: runtime of the export.
        precision: "float32" or a kind of int8.
        layers: layers with an exit, the last layer included.
        agreement: fraction of predictions equal to torch's, by exit layer; None if they were not compared.
        one_file: the single graph with early exits, or None.
        policy: exit policy of the single graph, or None.
    """

    folder: Path
    backend: str
    precision: str
    layers: tuple[int, ...]
    agreement: dict[int, float] | None
    one_file: Path | None = None
    policy: Policy | None = None

    def __str__(self) -> str:
        layers = ", ".join(map(str, self.layers))
        written = f"Wrote {self.folder} in {self.precision} with exits on layers {layers}."
        if self.one_file is None or self.policy is None:
            return written
        return f"{written}\nWrote {self.one_file} with the exit policy {self.policy.describe()}."


def export(
    model: str | os.PathLike[str],
    texts: Any = None,
    *,
    backend: str = "onnx",
    int8: str | None = None,
    smooth: bool = True,
    exits: str | Sequence[int] | None = None,
    one_file: str | bool | None = None,
    force: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
    **data: Unpack[DataArguments],
) -> ExportResult:
    """Export a model to ONNX Runtime or OpenVINO, into the model folder.

    The export has one graph per exit. Its predictions are compared with torch's. By default it is quantized to int8,
    with the fastest method on this machine that preserves at least 99 % of the predictions of every exit.

    Args:
        model: a model folder.
        texts: texts, a table or a file, for quantization scales and for the comparison; None for rows of the training
            run.
        backend: "onnx" or "openvino".
        int8: activation scales: "static", "mixed", "token", "dynamic" or "none" (float32); None or "auto" for the
            fastest of static and mixed that preserves predictions (token without texts).
        smooth: move activation outliers into the weights.
        exits: layers of the exits to keep; None for all.
        one_file: also write a single graph with early exits, with this exit policy (True for the calibrated one).
        force: write the export even if its predictions differ.
        overwrite: replace an existing export.
        threads: number of CPU threads; None for torch's choice.
        data: where the rows are; see `offramp.evaluate`.

    Returns:
        The folder, the precision and the agreement with torch.

    Examples:
        >>> result = offramp.export("my-model", texts, backend="onnx")
        >>> print(result.precision, result.agreement)
    """
    from offramp.extras import require
    from offramp.runtimes import RUNTIMES

    require("train", "Exporting", RUNTIMES[backend].extra)
    from offramp.exports.options import ExportOptions
    from offramp.exports.run import export as run
    from offramp.exports.texts import texts_for_export
    from offramp.model.adaptive import AdaptiveModel

    check_counts(threads=threads)
    folder, one_file = Path(model), None if one_file is False else one_file
    int8 = None if int8 == "auto" else int8
    if one_file is not None and backend != "onnx":
        raise BadValue("`one_file=` writes an ONNX graph, which OpenVINO reads too; remove `backend=`.")
    if one_file is not None and (folder / "onnx").is_dir() and not overwrite:
        if exits or int8:
            raise BadValue(
                "`exits=` and `int8=` need a new export, but one exists: set `overwrite=True`, or remove them."
            )
        return _one_file(folder, backend, one_file)
    loaded = AdaptiveModel.from_pretrained(model).eval()
    if one_file is not None:
        loaded.config.answer_type.check_single_graph(loaded.config.answer_options)  # before an export is replaced
    if isinstance(one_file, str) and one_file:
        from offramp.exports.one_file import check_policy

        policy = loaded.config.resolve_policy(one_file)
        check_policy(policy, loaded.config.answer_type, loaded.config.answer_options)
    rows = texts_for_export(str(model), loaded.config, data_options(texts, None, data))
    run(loaded, rows, ExportOptions(backend, int8 or "auto", exits or "all", smooth, force, overwrite, threads))
    return _result(folder, backend) if one_file is None else _one_file(folder, backend, one_file)


def _result(folder: Path, backend: str, single: Path | None = None, policy: Policy | None = None) -> ExportResult:
    from offramp.exports.folder import read_export

    exported = read_export(folder, backend)
    checked = (exported.checked or {}).get("agreement")
    agreement = None if checked is None else {int(layer): share for layer, share in checked.items()}
    layers = tuple(int(spec["layer"]) for spec in exported.exits)
    return ExportResult(folder / backend, backend, exported.precision, layers, agreement, single, policy)


def _one_file(folder: Path, backend: str, policy: str | bool) -> ExportResult:
    from offramp.exports.one_file import write_one_file

    file, chosen = write_one_file(folder, policy if isinstance(policy, str) and policy else None)
    return _result(folder, backend, file, chosen)


@dataclass(frozen=True)
class TuneResult:
    """Result of `offramp.tune`; false if the guarantee cannot be satisfied and nothing was written.

    Attributes:
        folder: folder of the export, in the model folder.
        layers: layers of the exits that were kept.
        policy: the exit policy, or None.
        guarantee: the guarantee as a sentence, or None.
        reason: why nothing was written, or None.
        evidence: the test behind the guarantee; `evidence["classes"]` has the rows per class.
    """

    folder: Path
    layers: tuple[int, ...]
    policy: Policy | None
    guarantee: str | None
    reason: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return self.policy is not None

    def __str__(self) -> str:
        if self.policy is None:
            return str(self.reason)
        from offramp.report.class_table import class_table

        table = class_table(self.evidence.get("classes", ()), self.evidence.get("limits", ()))
        written = f"Wrote {self.folder} with exits on layers {', '.join(map(str, self.layers))}."
        return "\n".join([str(self.guarantee), *([f"\n{table}\n"] if table else []), written])


def tune(
    model: str | os.PathLike[str],
    texts: Any = None,
    labels: Sequence[Any] | None = None,
    *,
    backend: str = "onnx",
    risk: float = 0.02,
    confidence: float = 0.9,
    risk_type: str = "disagreement",
    policy: str = "auto",
    tolerance: float | None = None,
    batch: int = 32,
    threads: int | None = None,
    **arguments: Unpack[CalibrationArguments],
) -> TuneResult:
    """Choose the exits that make an exported model fastest within a risk limit, and export the model with them.

    Args:
        model: a model folder.
        texts: rows to choose and to test on; None for those that training held out.
        labels: labels of `texts` in memory, for a guarantee on accuracy.
        backend: "onnx" or "openvino".
        risk: maximum fraction of changed predictions, or of accuracy lost.
        confidence: confidence level of the guarantee.
        risk_type: "disagreement", "accuracy", or as in `offramp.calibrate` "changed" and "lost".
        policy: exit policy: "entropy", "confidence", "margin" or "risk"; "auto" tries entropy and risk.
        tolerance: for a regression, the maximum difference that counts as unchanged.
        batch: batch size to optimize for.
        threads: number of CPU threads; None for torch's choice.
        arguments: where the rows are, as in `offramp.evaluate`, and further arguments of the guarantee, as in
            `offramp.calibrate`.

    Returns:
        The exits, the policy and the guarantee; false if the guarantee cannot be satisfied.

    Examples:
        >>> result = offramp.tune("my-model", backend="onnx", risk=0.02)
        >>> print(result.layers, result.guarantee)
    """
    from offramp.extras import require
    from offramp.runtimes import RUNTIMES

    require("train", "Tuning", RUNTIMES[backend].extra)
    from offramp.calibration.rows import RowOptions
    from offramp.calibration.run import check_folder
    from offramp.calibration.tuning.run import TuneOptions
    from offramp.calibration.tuning.run import tune as run
    from offramp.exports.texts import texts_for_export
    from offramp.model.config import AdaptiveConfig

    check_counts(batch=batch, threads=threads)
    data, more = split_arguments(arguments)
    target = make_guarantee(risk, confidence, tolerance, more, risk_type)
    check_folder(str(model))
    config = AdaptiveConfig.from_pretrained(model)
    rows, name = data_options(texts, labels, data, more.get("group_column"), more.get("groups")), str(model)
    options, row_options = (
        TuneOptions(backend, policy, batch, threads),
        RowOptions(more.get("count"), more.get("ledger")),
    )
    tuned = run(name, rows, texts_for_export(name, config, rows), target, options, row_options)
    holds = tuned.policy is not None
    guarantee, reason = (tuned.sentence, None) if holds else (None, tuned.sentence)
    return TuneResult(Path(model) / backend, tuned.layers, tuned.policy, guarantee, reason, tuned.evidence or {})


@dataclass(frozen=True)
class BenchmarkResult:
    """Result of `offramp.benchmark`; `print(result)` shows the table.

    Attributes:
        results: throughput, latency, agreement and memory of every entry, as written by `json=`.
    """

    results: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per entry and batch size."""
        return list(self.results["rows"])

    def __str__(self) -> str:
        from offramp.report.benchmark import table

        return table(self.results)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def benchmark(
    model: str | os.PathLike[str],
    texts: Any = None,
    labels: Sequence[Any] | None = None,
    *,
    batch: Sequence[int] = (1, 8, 32, 64),
    baselines: Sequence[str] | None = None,
    rows: int | None = None,
    rounds: int = 3,
    memory: bool = True,
    threads: int | None = None,
    json: str | os.PathLike[str] | None = None,
    figure: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    **data: Unpack[DataArguments],
) -> BenchmarkResult:
    """Measure a model against baselines in one run, on your own texts and this machine.

    Args:
        model: a model folder.
        texts: texts to predict; None for the dev rows of the training run.
        labels: labels of `texts` in memory.
        batch: batch sizes.
        baselines: "plain", "pipeline", "bfloat16", "onnx", "openvino", "originals", "optimizer", "compile",
            "torch-int8", "torchao", "ctranslate2", "llama.cpp"; None for all that are installed.
        rows: number of texts to time, spread over all; None for all.
        rounds: passes over the texts; the median is reported.
        memory: whether to measure memory, in a separate process per entry.
        threads: number of CPU threads; None for torch's choice.
        json: JSON file for the results.
        figure: file for a figure, .svg or .png.
        overwrite: replace these files if they exist.
        data: where the rows are; see `offramp.evaluate`.

    Returns:
        The results; `print` shows them as a table.

    Examples:
        >>> print(offramp.benchmark("my-model", texts, batch=[1, 32]))
    """
    import importlib.util

    from offramp.extras import require

    require("train", "The benchmark", "onnx")
    import torch

    from offramp.data.rows import DataOptions, load_rows
    from offramp.evaluation.benchmark.baselines import BASELINES
    from offramp.evaluation.benchmark.run import BenchmarkOptions
    from offramp.evaluation.benchmark.run import benchmark as run
    from offramp.exports.texts import texts_for_export
    from offramp.files.writing import check_output_path
    from offramp.model.adaptive import AdaptiveModel

    check_counts(rows=rows, threads=threads)
    targets = [None if path is None else Path(path) for path in (json, figure)]
    for target in targets:
        if target is not None:
            check_output_path(target, overwrite)
    if targets[1] is not None and targets[1].suffix not in (".svg", ".png"):
        raise BadValue(f"`figure` must end in .svg or .png, got {figure}.")
    if threads is not None:
        torch.set_num_threads(threads)
    installed = [name for name in BASELINES if name != "openvino" or importlib.util.find_spec(name) is not None]
    loaded = AdaptiveModel.from_pretrained(model).eval()
    source = data_options(texts, labels, data)
    test_rows = load_rows(str(model), loaded.config, source, "dev")
    options = BenchmarkOptions(tuple(batch), tuple(baselines or installed), rounds, rows, threads, memory)
    trained = DataOptions(task=data.get("task"), data_dir=data.get("data_dir"))
    scales = texts_for_export(str(model), loaded.config, trained)
    if not scales.scales:  # no training rows
        scales = texts_for_export(str(model), loaded.config, source)
    results = run(loaded, test_rows, scales, options)
    _write(results, targets[0], targets[1], overwrite)
    return BenchmarkResult(results)


def _write(results: dict[str, Any], json: Path | None, figure: Path | None, overwrite: bool) -> None:
    from json import dumps

    from offramp.files.writing import staged_file, writing
    from offramp.report.benchmark import draw

    if json is not None:
        with staged_file(json, overwrite) as out:
            out.write(dumps(results, indent=1) + "\n")
    if figure is not None:
        with writing(figure):
            draw(results, figure)
