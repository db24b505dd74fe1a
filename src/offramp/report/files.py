"""Results as files: JSON, CSV, plain arrays."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offramp.errors import BadInput

__all__ = ["COLUMNS", "RESULTS", "read_results", "write_files"]

RESULTS = "results.json"
KEYS = ("model", "data", "exits", "policies", "static")  # what readers need
COLUMNS = ("score", "agreement", "mean_layers", "cost", "speedup", "flops", "elue_flops", "seconds")


def write_files(folder: Path, results: Mapping[str, Any]) -> None:
    """`results.json`, `curve.csv`, `each_layer.npy` and one array per policy."""
    (folder / RESULTS).write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = {**results["policies"], "layer": results["static"], "oracle": results["oracle"] or []}
    with (folder / "curve.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["policy", "parameter", *COLUMNS])
        for name, points in lines.items():
            writer.writerows([name, point["parameter"], *(point[column] for column in COLUMNS)] for point in points)
    for name, points in lines.items():
        table = [[point["parameter"], *(point[column] for column in COLUMNS)] for point in points]
        np.save(folder / f"{name}.npy", np.array(table, dtype=np.float64), allow_pickle=False)
    if results["data"]["metrics"]:
        main = results["data"]["metrics"][0]
        np.save(folder / "each_layer.npy", np.array([one["scores"][main] for one in results["exits"]]))


def read_results(folder: Path) -> dict[str, Any]:
    """A run's results."""
    file = folder / RESULTS
    if not file.is_file():
        raise BadInput(f"{folder} is not a run of `offramp evaluate`: it has no {RESULTS}.")
    try:
        found = json.loads(file.read_text("utf-8"))
    except ValueError as err:
        raise BadInput(f"{file} cannot be read as results ({err}); evaluate again.") from err
    missing = [key for key in KEYS if not isinstance(found, dict) or key not in found]
    if missing:
        raise BadInput(f"{file} cannot be read as results (it has no {missing[0]}); evaluate again.")
    return dict(found)
