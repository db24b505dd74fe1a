"""`benchmark(model, …)`: collect the entries, measure them and return the results."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from offramp.core.machine import cpu_name, half_precision
from offramp.data.metrics import METRICS
from offramp.data.reading import Text
from offramp.data.rows import TaskRows
from offramp.errors import BadModel, BadValue, UnknownName
from offramp.evaluation.benchmark.baselines import BASELINES, build_baselines
from offramp.evaluation.benchmark.entries import open_entry
from offramp.evaluation.benchmark.entry import Entry
from offramp.evaluation.benchmark.examples import fewer_documents
from offramp.evaluation.benchmark.measuring import (
    EntryResult,
    QualityScorer,
    measure_entries,
    peak_memory,
    warmup_texts,
)
from offramp.exports.folder import read_export
from offramp.exports.options import Texts
from offramp.model.adaptive import AdaptiveModel
from offramp.runtimes import graph_runtimes

__all__ = ["BenchmarkOptions", "benchmark"]

logger = logging.getLogger("offramp")


OWN_BASELINES = ("plain", "bfloat16", "onnx", "openvino")  # loaded by offramp itself


@dataclass(frozen=True)
class BenchmarkOptions:
    """Options of a benchmark."""

    batches: tuple[int, ...] = (1, 8, 32, 64)
    baselines: tuple[str, ...] = BASELINES
    rounds: int = 3
    timed: int | None = None  # number of texts to time, spread over all; None: all
    threads: int | None = None
    memory: bool = True


def benchmark(
    model: AdaptiveModel,
    data: TaskRows,
    texts: Texts,
    options: BenchmarkOptions,
) -> dict[str, Any]:
    """Measure all entries and return the results as JSON-compatible values."""
    _check(model, options)
    name, rows = str(model.name_or_path), data.rows.texts
    adaptive = _adaptive_entries(name)
    with TemporaryDirectory() as temporary:
        layers = [open_entry(entry, name, options.threads)(rows, 32).layers.mean() for entry in adaptive[-1:]]
        num_layers = max(1, min(model.config.num_layers, round(float(layers[0]))))
        baselines = build_baselines(model, texts, Path(temporary), _applicable(model, options), num_layers)
        if model.config.answer_type.compares_rows:
            baselines += fewer_documents(baselines, float(layers[0]) / model.config.num_layers)
        entries = [*baselines, *adaptive]
        quality = _quality_scorer(model, data)
        timed = _spread(rows, options.timed)
        results = measure_entries(entries, name, rows, timed, options.batches, options.rounds, options.threads, quality)
        if options.memory:
            results = _with_memory(results, entries, name, rows, options)
    return {
        "rows": [to_dict(result, results) for result in results],
        "cpu": cpu_name(),
        "threads": options.threads or torch.get_num_threads(),
        "torch": torch.__version__,
        "rounds": options.rounds,
        "timed": len(timed),
        "units": model.config.answer_type.plural if model.config.answer_type.compares_rows else "texts",
        "model": name,
        "policies": _policies(name, adaptive),
        "data": {"name": data.name, "rows": len(rows), "tokens": _mean_tokens(model, rows)},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _check(model: AdaptiveModel, options: BenchmarkOptions) -> None:
    for name in options.baselines:
        if name not in BASELINES:
            raise UnknownName("baseline", name, BASELINES)
    if not options.batches or min(options.batches) < 1:
        raise BadValue(f"`batch` must be at least 1, got {', '.join(map(str, options.batches))}.")
    if options.rounds < 1:
        raise BadValue(f"`rounds` must be at least 1, got {options.rounds}.")
    answer_type = model.config.answer_type
    if answer_type.needs_tolerance or (answer_type.multiple_rows and not answer_type.compares_rows):
        raise BadValue(f"The benchmark does not support {answer_type.title}.")


def _applicable(model: AdaptiveModel, options: BenchmarkOptions) -> list[str]:
    """Return the baselines that can run the model: several rows per example need those that offramp loads itself."""
    answer_type = model.config.answer_type
    if not answer_type.may_have_several_rows:
        return list(options.baselines)
    left_out = [name for name in options.baselines if name not in OWN_BASELINES]
    if left_out:
        logger.info("Skipping baselines that do not support %s: %s.", answer_type.title, ", ".join(left_out))
    return [name for name in options.baselines if name in OWN_BASELINES]


def _adaptive_entries(name: str) -> list[Entry]:
    """Return the entries with early exits: torch, and every export of the model."""
    entries = [Entry("offramp, torch float32", "early-exit")]
    if half_precision()["bfloat16"]:
        entries.append(Entry("offramp, torch bfloat16", "early-exit", dtype="bfloat16"))
    for runtime in reversed(graph_runtimes()):
        if (Path(name) / runtime.name).is_dir():
            try:
                export = read_export(Path(name), runtime.name)
            except BadModel as err:
                logger.warning("Skipping an export: %s", err)
                continue
            entries.append(
                Entry(f"offramp, {runtime.title} {export.precision}", "early-exit", runtime.name, export.precision)
            )
    return entries


def _quality_scorer(model: AdaptiveModel, data: TaskRows) -> QualityScorer:
    answer_type, labels = model.config.answer_type, data.labels
    expected = model.runner().answer(data.rows.texts, policy="never").values
    metric = None
    if labels is not None and data.metrics:
        chosen = METRICS[data.metrics[0]]
        metric = lambda answers: chosen.compute(answers, labels)  # noqa: E731
    return QualityScorer(answer_type, expected, metric)


def _with_memory(
    results: list[EntryResult], entries: Sequence[Entry], name: str, texts: Sequence[Text], options: BenchmarkOptions
) -> list[EntryResult]:
    size, measured = max(options.batches), {result.name for result in results}
    entries = [entry for entry in entries if entry.name in measured]
    peaks = {entry.name: peak_memory(entry, name, warmup_texts(texts), size, options.threads) for entry in entries}
    return [replace(result, memory_mb=round(peaks[result.name], 1)) for result in results]


def to_dict(result: EntryResult, results: Sequence[EntryResult]) -> dict[str, Any]:
    """Return a result with its speedup over the plain model, and over the best baseline of at least its quality."""
    same_batch = [other for other in results if other.batch == result.batch]
    plain = next((other for other in same_batch if other.name.startswith("plain")), None)
    depth = max(other.mean_layers for other in same_batch)
    baselines = [other for other in same_batch if not other.adaptive and other.counts and other.mean_layers == depth]
    comparable = [other for other in baselines if other.agreement >= result.agreement]
    best = max(comparable, key=lambda other: other.throughput, default=None)
    values = asdict(result) | {"spread": list(result.spread), "counts": result.counts}
    values["to_plain"] = None if plain is None else result.throughput / plain.throughput
    values["to_best_peer"] = None if best is None or not result.adaptive else result.throughput / best.throughput
    values["best_peer"] = None if best is None or not result.adaptive else best.name
    return values


def _spread(texts: Sequence[Text], count: int | None) -> list[Text]:
    """Return `count` texts, spread evenly over all."""
    if count is None or count >= len(texts):
        return list(texts)
    return [texts[index] for index in np.linspace(0, len(texts) - 1, count).astype(int)]


def _policies(name: str, entries: Sequence[Entry]) -> dict[str, str]:
    from offramp.runtimes.loading import load

    return {entry.name: str(load(name, entry.backend).config.exit_policy) for entry in entries}


def _mean_tokens(model: AdaptiveModel, texts: Sequence[Text]) -> float:
    chunks = model.runner().chunks(texts, progress=False, quiet=True)
    return round(float(np.concatenate([chunk.rows.lengths for chunk in chunks]).mean()), 1)
