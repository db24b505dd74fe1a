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
# of what the results are: where it stands, and of which type it is
FACTS: dict[tuple[str, str], type] = {
    ("model", "depth"): int,
    ("model", "parameters"): int,
    ("data", "name"): str,
    ("data", "rows"): int,
    ("data", "fingerprint"): str,
    ("data", "metrics"): list,
}
MOST = 10**18  # of anything: what is larger was not counted
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
    """A run's results, with everything that a comparison reads as it has to be."""
    file = folder / RESULTS
    if not file.is_file():
        raise BadInput(f"{folder} is not a run of `offramp evaluate`: it has no {RESULTS}.")
    try:
        found = json.loads(file.read_text("utf-8"))
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror}.") from err
    except (ValueError, RecursionError) as err:
        raise _unreadable(file, str(err)) from err
    missing = [key for key in KEYS if not isinstance(found, dict) or key not in found]
    if missing:
        raise _unreadable(file, f"it has no {missing[0]}")
    _check_facts(file, found)
    scored = bool(found["data"]["metrics"])
    if not isinstance(found["policies"], dict):
        raise _unreadable(file, f"policies is {found['policies']!r:.40}")
    for name, points in {**found["policies"], "static": found["static"]}.items():
        place = name if name == "static" else f"policies.{name}"
        if not isinstance(points, list) or not points:
            raise _unreadable(file, f"{place} is {points!r:.40}")
        for number, point in enumerate(points):
            _check_point(file, f"{place}[{number}]", point, scored)
    return dict(found)


def _check_facts(file: Path, found: Mapping[str, Any]) -> None:
    """What the results are of."""
    for (part, name), kind in FACTS.items():
        section = found[part]
        value = section.get(name) if isinstance(section, dict) else None
        if not isinstance(value, kind) or (isinstance(value, int) and (value is True or not 1 <= value <= MOST)):
            raise _unreadable(file, f"{part}.{name} is {value!r:.40}")
    if not all(isinstance(metric, str) for metric in found["data"]["metrics"]):
        raise _unreadable(file, f"data.metrics is {found['data']['metrics']!r:.40}")


def _check_point(file: Path, place: str, point: Any, scored: bool) -> None:
    """The numbers of a point that curves are made of."""
    if not isinstance(point, dict):
        raise _unreadable(file, f"{place} is {point!r:.40}")
    needed = ("mean_layers", "agreement", "flops", *(["score"] if scored else []))
    for name in (*needed, "elue_flops"):
        if name not in point:
            raise _unreadable(file, f"{place} has no {name}")
        value = point[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and -MOST <= value <= MOST
        if not is_number and (name in needed or value is not None):
            raise _unreadable(file, f"{place}.{name} is {value!r:.40}")


def _unreadable(file: Path, fault: str) -> BadInput:
    return BadInput(f"{file} cannot be read as results ({fault}); evaluate again.")
