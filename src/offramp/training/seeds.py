"""One run per seed, and a summary of their scores."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from offramp.errors import BadValue, CannotWrite
from offramp.files.writing import writing
from offramp.training import folder
from offramp.training.data import Tables
from offramp.training.results import TrainResult
from offramp.training.run import train
from offramp.training.settings import Settings

__all__ = ["summary_table", "train_seeds"]

SUMMARY = "summary.json"


def train_seeds(
    settings: Settings, *, resume: bool = False, overwrite: bool = False, tables: Tables | None = None
) -> list[TrainResult]:
    """Train into `OUTPUT/seed-N` for every seed, then write mean and standard deviation per exit to summary.json."""
    seeds = settings.seeds if isinstance(settings.seeds, list) else [settings.seeds]
    if not all(isinstance(seed, int) for seed in seeds) or len(set(seeds)) != len(seeds):
        raise BadValue(f"`seeds` must be different whole numbers, such as 1,2,3, got {settings.seeds}.")
    output = Path(settings.output)
    runs = [settings.changed(seed=seed, seeds=None, output=str(output / f"seed-{seed}")) for seed in seeds]
    if (output / "config.json").is_file():
        raise CannotWrite(f"{output} contains another run; choose another folder for several seeds.")
    main = int(os.environ.get("RANK", "0")) == 0
    if main:
        with writing(output):
            output.mkdir(exist_ok=True)
        for run in runs:
            folder.check_output_folder(run, resume, overwrite, int(os.environ.get("WORLD_SIZE", "1")))
    try:
        results = [train(run, resume=resume, overwrite=overwrite, tables=tables) for run in runs]
    finally:
        if main and not any(output.iterdir()):  # failed before training
            output.rmdir()
    dev: dict[str, Any] = {}
    for name in results[0].dev:
        scores = np.array([[exit_[result.metric] for exit_ in result.dev[name]] for result in results])
        scores = np.column_stack([scores, scores.mean(1)])  # the exits, then their mean
        deviation = scores.std(0, ddof=1) if len(seeds) > 1 else np.zeros(scores.shape[1])
        dev[name] = {"mean": scores.mean(0).tolist(), "sd": deviation.tolist()}
    summary = {"seeds": seeds, "metric": results[0].metric, "layers": list(results[0].layers), "dev": dev}
    if main:
        (output / SUMMARY).write_text(json.dumps(summary, indent=1), encoding="utf-8")
    return results


def summary_table(output: Path, results: list[TrainResult]) -> str:
    """Return a table of each seed's main score per exit, with mean and standard deviation."""
    lines = [
        result.table(f"seed {result.folder.name.removeprefix('seed-')}", header=result is results[0])
        for result in results
    ]
    summary = json.loads((output / SUMMARY).read_text("utf-8"))
    for name, scores in summary["dev"].items():
        for statistic in ("mean", "sd"):
            label = statistic if len(summary["dev"]) == 1 else f"{statistic} {name}"
            lines.append(f"{label:<16}" + "".join(f"{100 * value:>9.1f}" for value in scores[statistic]))
    lines.append(f"Wrote {output}.")
    return "\n".join(lines)
