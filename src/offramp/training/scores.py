"""What every exit is worth on dev, as numbers and as a small table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.answer import Decoding, RowOutputs
from offramp.data.metrics import score
from offramp.data.task import Task
from offramp.training.examples import Examples

__all__ = ["flat_scores", "per_exit", "table"]


def per_exit(
    logits: NDArray[Any], numbers: NDArray[Any], examples: Examples, labels: NDArray[Any], task: Task
) -> list[dict[str, float]]:
    """Every metric of every exit, shallow to deep; logits are (rows, exits, columns), of the rows of these numbers."""
    whole = np.empty_like(logits)
    whole[numbers - examples.first] = logits
    whole, rows = task.answer_type.locate(whole, examples.rows), examples.rows
    decoding = Decoding(task.labels or (), 0.0 if task.no_answer else None)
    none = np.zeros(len(whole), dtype=np.int64)
    scores = []
    for place in range(whole.shape[1]):
        outputs = RowOutputs(whole[:, place], none, none)
        values = task.answer_type.decode(outputs, rows.group, rows.examples, decoding).values
        scores.append(score(task.metrics, values, labels))
    return scores


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
