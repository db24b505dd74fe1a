"""`offramp.export`, `offramp.tune` and `offramp.benchmark`: other runtimes, and what they are worth here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from offramp.api.options import DataArguments, check_counts, data_options
from offramp.errors import BadValue

if TYPE_CHECKING:
    from offramp.policies import Policy

__all__ = ["BenchmarkResult", "ExportResult", "TuneResult", "benchmark", "export", "tune"]


@dataclass(frozen=True)
class ExportResult:
    """What was written: where, in which precision, and how every exit agrees with torch (None: not compared)."""

    folder: Path
    backend: str
    precision: str
    layers: tuple[int, ...]
    agreement: dict[int, float] | None
    one_file: Path | None = None
    policy: Policy | None = None  # of the single file

    def __str__(self) -> str:
        single = "" if self.one_file is None else f"\nWrote {self.one_file}, which exits by {self.policy}."
        return f"Wrote {self.folder} in {self.precision}, exits on {', '.join(map(str, self.layers))}.{single}"


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
    """Write a model's layers and exits as graphs for ONNX Runtime or OpenVINO, into the model's own folder.

    Every exit's answers are compared with torch's on real texts. int8 is chosen by what is quickest here and keeps at
    least 99 % of every exit's answers.

    Args:
        model: a model folder.
        texts: texts, a table or a file to take scales from and to compare on; None: rows of its training.
        backend: onnx or openvino.
        int8: static, token, dynamic or none; None: the quickest of static and token that keeps the answers.
        smooth: move outliers of activations into the weights.
        exits: where to cut, a list of layers; None: at every exit.
        one_file: also write one graph that exits by itself, with this policy (True: the calibrated one).
        force: keep it even if it answers differently.
        overwrite: replace an export that is there.
        threads: CPU threads.
        data: where the rows are, as in `offramp.evaluate`.

    >>> offramp.export("my-model", texts, backend="onnx").agreement                   # doctest: +SKIP
    """
    from offramp.extras import require
    from offramp.runtimes import RUNTIMES

    require("train", "Exporting")
    RUNTIMES[backend].check()
    from offramp.exports.options import ExportOptions
    from offramp.exports.run import export as run
    from offramp.exports.texts import texts_for
    from offramp.model.adaptive import AdaptiveModel

    check_counts(threads=threads)
    folder, one_file = Path(model), None if one_file is False else one_file
    if one_file is not None and backend != "onnx":
        raise BadValue("`one_file=` writes an ONNX graph; OpenVINO reads that one, too. Leave `backend=` out.")
    if one_file is not None and (folder / "onnx").is_dir() and not overwrite:
        if exits or int8:
            raise BadValue(
                "`exits=` and `int8=` are of a new export, and there is one: give `overwrite=True`, or leave them out."
            )
        return _one_file(folder, backend, one_file)
    loaded = AdaptiveModel.from_pretrained(model).eval()
    if isinstance(one_file, str) and one_file:
        from offramp.exports.one_file import check_policy

        check_policy(loaded.config.choose(one_file), loaded.config.answer_type)
    rows = texts_for(str(model), loaded.config, data_options(texts, None, data))
    run(loaded, rows, ExportOptions(backend, int8 or "auto", exits or "all", smooth, force, overwrite, threads))
    return _result(folder, backend) if one_file is None else _one_file(folder, backend, one_file)


def _result(folder: Path, backend: str, single: Path | None = None, policy: Policy | None = None) -> ExportResult:
    from offramp.exports.folder import read_export

    made = read_export(folder, backend)
    checked = (made.checked or {}).get("agreement")
    agreement = None if checked is None else {int(layer): share for layer, share in checked.items()}
    layers = tuple(int(spec["layer"]) for spec in made.exits)
    return ExportResult(folder / backend, backend, made.precision, layers, agreement, single, policy)


def _one_file(folder: Path, backend: str, policy: str | bool) -> ExportResult:
    from offramp.exports.one_file import write_one_file

    file, chosen = write_one_file(folder, policy if isinstance(policy, str) and policy else None)
    return _result(folder, backend, file, chosen)


@dataclass(frozen=True)
class TuneResult:
    """The exits that were kept, the policy, and the guarantee; without a policy nothing was written."""

    folder: Path
    layers: tuple[int, ...]
    policy: Policy | None
    guarantee: str | None
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.policy is not None

    def __str__(self) -> str:
        if self.policy is None:
            return str(self.reason)
        return f"{self.guarantee}\nWrote {self.folder} with exits on {', '.join(map(str, self.layers))}."


def tune(
    model: str | os.PathLike[str],
    texts: Any = None,
    labels: Sequence[Any] | None = None,
    *,
    backend: str = "onnx",
    risk: float = 0.01,
    confidence: float = 0.95,
    risk_type: str = "disagreement",
    policy: str = "auto",
    tolerance: float | None = None,
    batch: int = 32,
    threads: int | None = None,
    **data: Unpack[DataArguments],
) -> TuneResult:
    """Choose which exits an export keeps, for the best speed on this machine within a risk, and export it cut there.

    Args:
        model: a model folder.
        texts: rows to choose and to test on; None: those that training set aside.
        labels: of texts in memory, for a guarantee about accuracy.
        backend: onnx or openvino.
        risk: maximum fraction of changed answers, or of accuracy lost.
        confidence: confidence level.
        risk_type: "disagreement" or "accuracy".
        policy: entropy, confidence, margin or risk; "auto": the best of entropy and risk.
        tolerance: of a regression, how far off a value may be.
        batch: texts that are served together.
        threads: CPU threads.
        data: where the rows are, as in `offramp.evaluate`.

    >>> offramp.tune("my-model", backend="onnx", risk=0.02).layers                    # doctest: +SKIP
    """
    from offramp.extras import require
    from offramp.runtimes import RUNTIMES

    require("train", "Tuning")
    RUNTIMES[backend].check()
    from offramp.calibration.risks import Guarantee
    from offramp.calibration.tuning.run import TuneOptions
    from offramp.calibration.tuning.run import tune as run
    from offramp.exports.texts import texts_for
    from offramp.model.config import AdaptiveConfig

    check_counts(batch=batch, threads=threads)
    target = Guarantee(risk_type, risk, confidence, tolerance=tolerance)
    config = AdaptiveConfig.from_pretrained(model)
    rows, name = data_options(texts, labels, data), str(model)
    made = run(name, rows, texts_for(name, config, rows), target, TuneOptions(backend, policy, batch, threads))
    kept = made.policy is not None
    guarantee, reason = (made.sentence, None) if kept else (None, made.sentence)
    return TuneResult(Path(model) / backend, made.layers, made.policy, guarantee, reason)


@dataclass(frozen=True)
class BenchmarkResult:
    """Throughput, latency, agreement and memory of every contestant, measured in one run."""

    results: dict[str, Any]  # as `json=` writes it

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row per contestant and batch size."""
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
    peers: Sequence[str] | None = None,
    rows: int | None = None,
    rounds: int = 3,
    memory: bool = True,
    threads: int | None = None,
    json: str | os.PathLike[str] | None = None,
    figure: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    **data: Unpack[DataArguments],
) -> BenchmarkResult:
    """Measure a model against the usual baselines, in one run, on your own texts.

    Args:
        model: a model folder.
        texts: texts to answer; None: the dev rows of its training.
        labels: of texts in memory.
        batch: batch sizes.
        peers: plain, pipeline, bfloat16, onnx, openvino, originals; None: all that are installed.
        rows: texts that seconds are measured on, spread over all; None: all.
        rounds: passes over the texts; the median counts.
        memory: measure memory, in a process per contestant.
        threads: CPU threads.
        json: a file for what was measured.
        figure: a figure of it, .svg or .png.
        overwrite: replace these files.
        data: where the rows are, as in `offramp.evaluate`.

    >>> print(offramp.benchmark("my-model", texts, batch=[1, 32]))                    # doctest: +SKIP
    """
    import importlib.util

    from offramp.extras import require

    require("train", "The benchmark")
    require("onnx", "The benchmark")
    import torch

    from offramp.data.rows import DataOptions, rows_for
    from offramp.evaluation.benchmark.peers import PEERS
    from offramp.evaluation.benchmark.run import BenchmarkOptions
    from offramp.evaluation.benchmark.run import benchmark as run
    from offramp.exports.texts import texts_for
    from offramp.files.writing import check_free
    from offramp.model.adaptive import AdaptiveModel

    check_counts(rows=rows, threads=threads)
    targets = [None if one is None else Path(one) for one in (json, figure)]
    for target in targets:
        if target is not None:
            check_free(target, overwrite)
    if targets[1] is not None and targets[1].suffix not in (".svg", ".png"):
        raise BadValue(f"{figure}: a figure ends in .svg or .png.")
    if threads is not None:
        torch.set_num_threads(threads)
    installed = [name for name in PEERS if name != "openvino" or importlib.util.find_spec(name) is not None]
    loaded = AdaptiveModel.from_pretrained(model).eval()
    given = data_options(texts, labels, data)
    answered = rows_for(str(model), loaded.config, given, "dev")
    options = BenchmarkOptions(tuple(batch), tuple(peers or installed), rounds, rows, threads, memory)
    trained = DataOptions(task=data.get("task"), data_dir=data.get("data_dir"))
    scales = texts_for(str(model), loaded.config, trained)
    if not scales.scales:  # nothing else is at hand
        scales = texts_for(str(model), loaded.config, given)
    results = run(loaded, answered, scales, options)
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
