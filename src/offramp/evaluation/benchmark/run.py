"""`benchmark(model, …)`: who runs, on what, and what became of it."""

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
from offramp.evaluation.benchmark.entries import Entry, open_entry
from offramp.evaluation.benchmark.peers import PEERS, peers
from offramp.evaluation.benchmark.race import WARM, QualityScorer, Row, peak_memory, race
from offramp.exports.folder import read_export
from offramp.exports.options import Texts
from offramp.model.adaptive import AdaptiveModel
from offramp.runtimes import graph_runtimes

__all__ = ["BenchmarkOptions", "benchmark"]

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class BenchmarkOptions:
    """What is asked for."""

    batches: tuple[int, ...] = (1, 8, 32, 64)
    peers: tuple[str, ...] = PEERS
    rounds: int = 3
    timed: int | None = None  # texts that seconds are measured on, spread over all; None: all
    threads: int | None = None
    memory: bool = True


def benchmark(
    model: AdaptiveModel,
    data: TaskRows,
    texts: Texts,
    options: BenchmarkOptions,
) -> dict[str, Any]:
    """Everything that was measured, as plain values."""
    _check(model, options)
    name, rows = str(model.name_or_path), data.rows.texts
    ours = _ours(name, model)
    with TemporaryDirectory() as place:
        layers = [open_entry(entry, name, options.threads)(rows, 32).layers.mean() for entry in ours[-1:]]
        static = max(1, min(model.config.num_layers, round(float(layers[0]))))
        entries = [*peers(model, texts, Path(place), options.peers, static), *ours]
        quality = _quality_scorer(model, data)
        timed = _spread(rows, options.timed)
        found = race(entries, name, rows, timed, options.batches, options.rounds, options.threads, quality)
        if options.memory:
            found = _with_memory(found, entries, name, rows, options)
    return {
        "rows": [told(row, found) for row in found],
        "cpu": cpu_name(),
        "threads": options.threads or torch.get_num_threads(),
        "torch": torch.__version__,
        "rounds": options.rounds,
        "timed": len(timed),
        "model": name,
        "policies": _policies(name, ours),
        "data": {"name": data.name, "rows": len(rows), "tokens": _mean_tokens(model, rows)},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _check(model: AdaptiveModel, options: BenchmarkOptions) -> None:
    for name in options.peers:
        if name not in PEERS:
            raise UnknownName("peer", name, PEERS)
    if not options.batches or min(options.batches) < 1:
        raise BadValue(f"Batches are {', '.join(map(str, options.batches))}; each is at least 1.")
    if options.rounds < 1:
        raise BadValue(f"`rounds` is {options.rounds}; it is at least 1.")
    if model.config.answer_type.several_rows or model.config.answer_type.needs_tolerance:
        raise BadValue(f"The benchmark compares classes, and this model answers with {model.config.answer_type.title}.")


def _ours(name: str, model: AdaptiveModel) -> list[Entry]:
    """Torch, and every export that there is."""
    found = [Entry("offramp, torch float32", "leaving")]
    if half_precision()["bfloat16"]:
        found.append(Entry("offramp, torch bfloat16", "leaving", dtype="bfloat16"))
    for runtime in reversed(graph_runtimes()):
        if (Path(name) / runtime.name).is_dir():
            try:
                export = read_export(Path(name), runtime.name)
            except BadModel as err:
                logger.warning("Left out: %s", err)
                continue
            found.append(
                Entry(f"offramp, {runtime.title} {export.precision}", "leaving", runtime.name, export.precision)
            )
    return found


def _quality_scorer(model: AdaptiveModel, data: TaskRows) -> QualityScorer:
    full = model.runner().answer(data.rows.texts, policy="never")
    answer_type, labels = model.config.answer_type, data.labels
    metric = None
    if labels is not None and data.metrics:
        chosen = METRICS[data.metrics[0]]
        metric = lambda answers: chosen.compute(answers, labels)  # noqa: E731
    return QualityScorer(answer_type, answer_type.answers(full.logits), metric)


def _with_memory(
    found: list[Row], entries: Sequence[Entry], name: str, texts: Sequence[Text], options: BenchmarkOptions
) -> list[Row]:
    size = max(options.batches)
    most = {entry.name: peak_memory(entry, name, texts[:WARM], size, options.threads) for entry in entries}
    return [replace(row, memory_mb=round(most[row.name], 1)) for row in found]


def told(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """A row with its ratios: to the plain model, and to the best full-depth peer that answers at least as well."""
    same = [one for one in rows if one.batch == row.batch]
    plain = next((one for one in same if one.name.startswith("plain")), None)
    fair = [one for one in same if not one.adaptive and one.counts and one.agreement >= row.agreement]
    deep = [one for one in fair if one.mean_layers == max(other.mean_layers for other in same)]
    best = max(deep, key=lambda one: one.throughput, default=None)
    saved = asdict(row) | {"spread": list(row.spread), "counts": row.counts}
    saved["to_plain"] = None if plain is None else row.throughput / plain.throughput
    saved["to_best_peer"] = None if best is None or not row.adaptive else row.throughput / best.throughput
    saved["best_peer"] = None if best is None or not row.adaptive else best.name
    return saved


def _spread(texts: Sequence[Text], count: int | None) -> list[Text]:
    """So many texts, evenly over all."""
    if count is None or count >= len(texts):
        return list(texts)
    return [texts[place] for place in np.linspace(0, len(texts) - 1, count).astype(int)]


def _policies(name: str, ours: Sequence[Entry]) -> dict[str, str]:
    from offramp.runtimes.loading import load

    return {entry.name: str(load(name, entry.backend).config.exit_policy) for entry in ours}


def _mean_tokens(model: AdaptiveModel, texts: Sequence[Text]) -> float:
    chunks = model.runner().chunks(texts, progress=False, quiet=True)
    return round(float(np.concatenate([chunk.rows.lengths for chunk in chunks]).mean()), 1)
