"""A run per seed, and what they have in common."""

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
from offramp.training.run import Result, train
from offramp.training.settings import Settings

__all__ = ["summary", "train_seeds"]

SUMMARY = "summary.json"


def train_seeds(
    settings: Settings, *, resume: bool = False, overwrite: bool = False, tables: Tables | None = None
) -> list[Result]:
    """Train into `OUTPUT/seed-N` for every seed, then write means and spreads (of each exit, last of their mean)."""
    seeds = settings.seeds if isinstance(settings.seeds, list) else [settings.seeds]
    if not all(isinstance(seed, int) for seed in seeds) or len(set(seeds)) != len(seeds):
        raise BadValue(f"`seeds` are {settings.seeds}; list whole numbers, each once: 1,2,3.")
    output = Path(settings.output)
    runs = [settings.changed(seed=seed, seeds=None, output=str(output / f"seed-{seed}")) for seed in seeds]
    if (output / "config.json").is_file():
        raise CannotWrite(f"{output} holds another run; name another folder for several seeds.")
    main = int(os.environ.get("RANK", "0")) == 0
    if main:
        with writing(output):
            output.mkdir(exist_ok=True)
        for run in runs:
            folder.check(run, resume, overwrite, int(os.environ.get("WORLD_SIZE", "1")))
    try:
        results = [train(run, resume=resume, overwrite=overwrite, tables=tables) for run in runs]
    finally:
        if main and not any(output.iterdir()):  # refused before anything was trained
            output.rmdir()
    dev: dict[str, Any] = {}
    for name in results[0].dev:
        scores = np.array([[exit_[result.metric] for exit_ in result.dev[name]] for result in results])
        scores = np.column_stack([scores, scores.mean(1)])  # the exits, then their mean
        spread = scores.std(0, ddof=1) if len(seeds) > 1 else np.zeros(scores.shape[1])
        dev[name] = {"mean": scores.mean(0).tolist(), "sd": spread.tolist()}
    means = {"seeds": seeds, "metric": results[0].metric, "layers": list(results[0].layers), "dev": dev}
    if main:
        (output / SUMMARY).write_text(json.dumps(means, indent=1), encoding="utf-8")
    return results


def summary(output: Path, results: list[Result]) -> str:
    """Each seed's main score per exit, the mean and the standard deviation."""
    lines = [results[0].table(f"seed {results[0].folder.name.removeprefix('seed-')}")]
    lines += [one.table(f"seed {one.folder.name.removeprefix('seed-')}", header=False) for one in results[1:]]
    told = json.loads((output / SUMMARY).read_text("utf-8"))
    for name, found in told["dev"].items():
        for kind in ("mean", "sd"):
            label = kind if len(told["dev"]) == 1 else f"{kind} {name}"
            lines.append(f"{label:<16}" + "".join(f"{100 * value:>9.1f}" for value in found[kind]))
    lines.append(f"Wrote {output}.")
    return "\n".join(lines)
