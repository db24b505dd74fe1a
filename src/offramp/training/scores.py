"""Dev scores of every exit, as numbers and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.answer import Decoding, RowOutputs
from offramp.data.metrics import score
from offramp.data.task import Task
from offramp.training.examples import Examples

__all__ = ["flatten_scores", "score_exits", "score_table"]


def score_exits(
    logits: NDArray[Any], row_numbers: NDArray[Any], examples: Examples, labels: NDArray[Any], task: Task
) -> list[dict[str, float]]:
    """Return all metrics of every exit, shallow to deep.

    `logits` is (rows, exits, columns), in the order of `row_numbers`, which count from `examples.first`.
    """
    ordered = np.empty_like(logits)
    ordered[row_numbers - examples.first] = logits
    ordered, rows = task.answer_type.locate(ordered, examples.rows), examples.rows
    decoding = Decoding(task.labels or (), 0.0 if task.no_answer else None)
    none = np.zeros(len(ordered), dtype=np.int64)
    scores = []
    for index in range(ordered.shape[1]):
        outputs = RowOutputs(ordered[:, index], none, none)
        values = task.answer_type.decode(outputs, rows.group, rows.examples, decoding).values
        scores.append(score(task.metrics, values, labels))
    return scores


def flatten_scores(exits: Sequence[Mapping[str, float]], layers: Sequence[int], metric: str) -> dict[str, float]:
    """Return the scores under flat names such as `exit_3_acc`, plus `mean` and `last` of the main metric."""
    flat = {
        f"exit_{layer}_{name}": value
        for layer, scores in zip(layers, exits, strict=True)
        for name, value in scores.items()
    }
    main = [scores[metric] for scores in exits]
    return flat | {"mean": float(np.mean(main)), "last": main[-1]}


def score_table(rows: Sequence[tuple[str, Mapping[str, float]]], layers: Sequence[int], metric: str) -> str:
    """Return a table in percent with a line per evaluation and a column per exit."""
    width = max([len(name) for name, _ in rows] + [len(metric)])
    header = f"{metric:<{width}}  " + "".join(f"{f'exit {layer}':>9}" for layer in layers) + f"{'mean':>9}"
    lines = [header]
    for name, flat in rows:
        cells = "".join(f"{100 * flat[f'exit_{layer}_{metric}']:>9.1f}" for layer in layers)
        lines.append(f"{name:<{width}}  {cells}{100 * flat['mean']:>9.1f}")
    return "\n".join(lines)
