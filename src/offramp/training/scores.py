"""What every exit is worth on dev, as numbers and as a small table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.data import Task
from offramp.data.metrics import score

__all__ = ["flat_scores", "per_exit", "table"]


def per_exit(logits: NDArray[Any], labels: NDArray[Any], task: Task) -> list[dict[str, float]]:
    """Every metric of every exit, shallow to deep; logits are (rows, exits, classes)."""
    answers = [task.answer_type.answers(logits[:, place]) for place in range(logits.shape[1])]
    return [score(task.metrics, given, labels) for given in answers]


def flat_scores(each: Sequence[Mapping[str, float]], layers: Sequence[int], metric: str) -> dict[str, float]:
    """The same under flat names: `exit_3_acc`, and of the main metric `mean` and `last`."""
    flat = {
        f"exit_{layer}_{name}": value for layer, one in zip(layers, each, strict=True) for name, value in one.items()
    }
    main = [one[metric] for one in each]
    return flat | {"mean": float(np.mean(main)), "last": main[-1]}


def table(rows: Sequence[tuple[str, Mapping[str, float]]], layers: Sequence[int], metric: str) -> str:
    """One line per evaluation, one column per exit, in percent."""
    width = max([len(name) for name, _ in rows] + [len(metric)])
    head = f"{metric:<{width}}  " + "".join(f"{f'exit {layer}':>9}" for layer in layers) + f"{'mean':>9}"
    lines = [head]
    for name, flat in rows:
        cells = "".join(f"{100 * flat[f'exit_{layer}_{metric}']:>9.1f}" for layer in layers)
        lines.append(f"{name:<{width}}  {cells}{100 * flat['mean']:>9.1f}")
    return "\n".join(lines)
