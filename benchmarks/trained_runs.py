"""The finished runs of training_results.py: their records, and every exit's outputs on the dev rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from offramp.data.metrics import score
from offramp.data.tasks import TASKS
from offramp.evaluation.traces.trace import Trace
from offramp.policies import Policy
from offramp.policies.grids import grid
from training_results import PROTOTYPE_OPTIONS, RESULTS, RUNS

USUAL_RATE = PROTOTYPE_OPTIONS[PROTOTYPE_OPTIONS.index("--learning-rate") + 1]


@dataclass(frozen=True)
class Point:
    """A policy's result on a trace."""

    policy: str
    layers: float
    score: float
    disagreement: float


@dataclass(frozen=True)
class Trained:
    """A finished run: its record, and every exit's outputs on the dev rows."""

    record: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the run."""
        return str(self.record["run"])

    @property
    def options(self) -> dict[str, str]:
        """The options of `offramp train`; the first records have no separate learning rate of the heads."""
        words = self.record["options"]
        options = dict(zip(words[::2], words[1::2], strict=True))  # later values override earlier ones
        return options | {"--head-learning-rate": options.get("--head-learning-rate", options["--learning-rate"])}

    @property
    def recipe(self) -> str:
        """The recipe, with the learning rates that differ from the usual one."""
        recipe, options, depth = self.record["recipe"], self.options, self.record["layers"][-1]
        rate, heads = options["--learning-rate"], options["--head-learning-rate"]
        parts = [recipe] if recipe != "static" else [f"static, {depth} layer{'s' if depth > 1 else ''}"]
        parts += [rate] if rate != USUAL_RATE else []
        parts += [f"heads {heads}"] if heads != rate else []
        return ", ".join(parts)

    @property
    def scores(self) -> list[float]:
        """The main score of every exit on the first dev set, in percent."""
        dev = next(iter(self.record["dev"].values()))
        return [100 * scores[self.record["metric"]] for scores in dev]

    @property
    def minutes(self) -> str:
        """The training time; unknown if training was resumed."""
        stages = self.record["stages"]
        if any(stage["resumed"] for stage in stages):
            return "–"
        return f"{sum(stage['seconds'] or 0 for stage in stages) / 60:.0f}"

    @cached_property
    def trace(self) -> Trace:
        """The trace of every exit's outputs on the dev rows."""
        arrays = load_file(RESULTS / f"{self.name}.safetensors")
        answer_type = TASKS[self.record["task"]].answer_type
        labels = arrays["labels"].astype(np.float64 if answer_type.needs_tolerance else np.int64)
        uncertainty = arrays.get("uncertainty")
        layers = self.record["layers"]
        about = {"model": {"problem": answer_type.name, "layers": layers, "depth": layers[-1], "faithful": False}}
        empty = np.empty(0)
        return Trace(
            about,
            arrays["logits"].astype(np.float32),
            *(empty, empty, empty, empty),  # costs, lengths and hashes are not recorded
            labels=labels,
            uncertainty=None if uncertainty is None else uncertainty.astype(np.float32),
        )

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether each exit's prediction is correct, (rows, exits)."""
        trace = self.trace
        return np.stack([trace.answers_at(index) == trace.labels for index in range(len(trace.points))], axis=1)

    def at(self, policy: Policy) -> Point:
        """Return the result of a policy on these rows."""
        replayed, metric, labels = self.trace.replay(policy), self.record["metric"], self.trace.labels
        assert labels is not None
        return Point(
            str(policy),
            float(replayed.layer.mean()),
            100 * score([metric], replayed.answers, labels)[metric],
            100 * float(np.mean(replayed.answers != self.trace.full)),
        )

    @cached_property
    def curve(self) -> list[Point]:
        """The entropy policy at all thresholds, from no early exits to all rows at the first exit."""
        return [self.at(policy) for policy in grid("entropy", self.trace.model_spec)]

    def cheapest(self, disagreement: float) -> Point:
        """Return the point with the fewest layers among those with at most this disagreement in percent."""
        points = (point for point in self.curve if point.disagreement <= disagreement)
        return min(points, key=lambda point: point.layers)


def read() -> list[Trained]:
    """Return the finished runs, in the order of the script."""
    files = [RESULTS / f"{run.name}.json" for run in RUNS]
    return [Trained(json.loads(file.read_text())) for file in files if file.is_file()]


def group_of(runs: list[Trained], start: str) -> list[Trained]:
    """Return the runs whose names start with `start`."""
    return [run for run in runs if run.name.startswith(start)]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return a Markdown table."""
    head = list(head)
    return [
        f"| {' | '.join(head)} |",
        "|---" + "|---:" * (len(head) - 1) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
