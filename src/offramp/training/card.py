"""The training section of a model card: task, data, recipe and scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from offramp.data.task import Task
from offramp.model.card_facts import Score
from offramp.training.recipes import Recipe
from offramp.training.settings import Settings

__all__ = ["card_facts", "training_notes"]


def card_facts(
    known: Mapping[str, Any] | None, task: Task, dev: Mapping[str, list[dict[str, float]]], metric: str
) -> dict[str, Any]:
    """Return what the card's metadata needs: the dataset on the Hub, and the last exit's score on every dev set."""
    hub, config = (None, None) if task.hub is None else (task.hub.path, task.hub.config)
    last = {split: round(exits[-1][metric], 4) for split, exits in dev.items()}
    scores = [asdict(Score(metric, value, task.name, split, hub, config)) for split, value in last.items()]
    return {**(known or {}), "datasets": [] if hub is None else [hub], "scores": scores}


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
