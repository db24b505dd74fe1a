"""Write an evaluation to a folder: JSON, CSV, NumPy arrays, figures and an HTML report."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np

from offramp.evaluation.results import RESULTS, Evaluation
from offramp.policies import POLICIES
from offramp.report import figures
from offramp.report.page import render

__all__ = ["COLUMNS", "TRACE", "run_files", "write_run"]

TRACE = "trace.safetensors"
COLUMNS = ("score", "agreement", "mean_layers", "cost", "speedup", "flops", "elue_flops", "seconds")


def run_files() -> re.Pattern[str]:
    """Return a pattern of the files that an evaluation writes; no other file is ever replaced."""
    arrays = "|".join(map(re.escape, ["each_layer", "oracle", *POLICIES]))
    return re.compile(
        r"results\.json|curve\.(csv|png|svg)|exits\.(png|svg)|report\.html|trace\.safetensors|" + rf"({arrays})\.npy"
    )


def write_run(folder: Path, results: Evaluation) -> None:
    """Write `results.json`, `curve.csv`, `each_layer.npy`, an array per policy, figures, `report.html`."""
    text = json.dumps(results.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / RESULTS).write_text(text, encoding="utf-8")
    with (folder / "curve.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["policy", "parameter", *COLUMNS])
        for name, points in results.lines.items():
            writer.writerows(
                [name, point.parameter, *(getattr(point, column) for column in COLUMNS)] for point in points
            )
    for name, points in results.lines.items():
        table = [[point.parameter, *(getattr(point, column) for column in COLUMNS)] for point in points]
        np.save(folder / f"{name}.npy", np.array(table, dtype=np.float64), allow_pickle=False)
    if results.data.metrics:
        main = results.data.metrics[0]
        np.save(folder / "each_layer.npy", np.array([exit_.scores[main] for exit_ in results.exits]))
    _draw(folder, results)
    (folder / "report.html").write_text(render(results), encoding="utf-8")


def _draw(folder: Path, results: Evaluation) -> None:
    """Draw the curve and the histogram."""
    metrics, chosen = results.data.metrics, results.chosen
    assert chosen is not None
    figures.curves(
        folder,
        [(name, [asdict(point) for point in points]) for name, points in results.policies.items()],
        metrics[0] if metrics else None,
        title=f"{Path(results.model.name).name}, {results.data.name}",
        exits=[("fixed exits", [asdict(point) for point in results.static])],
        oracle=("oracle", [asdict(point) for point in results.oracle]) if results.oracle else None,
        chosen=asdict(chosen),
    )
    figures.histogram(folder, [exit_.layer for exit_ in results.exits], chosen.exits, chosen.policy)
