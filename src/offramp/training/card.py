"""The training section of a model card: task, data, recipe and scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offramp.training.recipes import Recipe
from offramp.training.settings import Settings

__all__ = ["training_notes"]


def training_notes(run: Mapping[str, Any], settings: Settings, recipe: Recipe) -> str:
    """Return the section as Markdown; it is stored in the config, so that copies of the model keep it."""
    rows, metric = run["rows"], run["metric"]
    options = ", ".join(f"{key} {value}" for key, value in run["recipe_options"].items() if key != "faithful" or value)
    lines = [
        "## Training",
        "",
        f"Task {run['task']}: {rows['train']:,} training rows, {rows['calibration']:,} held out for calibration.",
        f"Recipe `{recipe.name}`"
        + (f" ({options})" if options else "")
        + (f", {recipe.paper}." if recipe.paper else "."),
        f"Seed {settings.seed}, {run['seconds'] / 60:.0f} minutes. `training.yaml` holds all options;",
        "`offramp train --config training.yaml --output …` repeats the run.",
    ]
    for name, exits in run["dev"].items():
        others = [key for key in exits[0] if key != metric]
        lines += [
            "",
            f"Scores on {name} ({rows[name]:,} rows), percent:",
            "",
            f"| exit layer | {' | '.join([metric, *others])} |",
            "|---" * (2 + len(others)) + "|",
        ]
        for layer, scores in zip(run["layers"], exits, strict=True):
            lines.append(f"| {layer} | " + " | ".join(f"{100 * scores[key]:.1f}" for key in [metric, *others]) + " |")
    return "\n".join(lines)
