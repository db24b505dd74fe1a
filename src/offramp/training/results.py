"""The result of a training run, which its model folder keeps as scores.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["SCORES", "TrainResult", "read_result"]

SCORES = "scores.json"


@dataclass(frozen=True)
class TrainResult:
    """Result of `offramp.train`: the model folder, and all metrics of every exit on each dev set."""

    folder: Path
    layers: tuple[int, ...]
    metric: str
    dev: dict[str, list[dict[str, float]]]

    def table(self, label: str | None = None, header: bool = True) -> str:
        """Return a table of every exit's main score in percent, with a line per dev set."""
        lines = [f"{self.metric:<16}" + "".join(f"{f'exit {layer}':>9}" for layer in self.layers) + f"{'mean':>9}"]
        for name, exits in self.dev.items():
            values = [scores[self.metric] for scores in exits]
            row_label = name if label is None else label if len(self.dev) == 1 else f"{label} {name}"
            values.append(float(np.mean(values)))
            lines.append(f"{row_label:<16}" + "".join(f"{100 * value:>9.1f}" for value in values))
        return "\n".join(lines if header else lines[1:])


def read_result(output: Path) -> TrainResult:
    """Return the result of a finished run."""
    scores = json.loads((output / SCORES).read_text("utf-8"))
    return TrainResult(output, tuple(scores["layers"]), scores["metric"], scores["dev"])
