"""The finished runs of training_results.py: their records, and what every exit said about the dev rows."""

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
from training_results import LIKE_THE_SKETCH, RESULTS, RUNS

USUAL_RATE = LIKE_THE_SKETCH[LIKE_THE_SKETCH.index("--learning-rate") + 1]


@dataclass(frozen=True)
class Point:
    """One setting of a policy on a trace."""

    policy: str
    layers: float
    score: float
    disagreement: float


@dataclass(frozen=True)
class Trained:
    """A finished run: its record, and what every exit said about the dev rows."""

    record: dict[str, Any]

    @property
    def name(self) -> str:
        """The run's."""
        return str(self.record["run"])

    @property
    def options(self) -> dict[str, str]:
        """What `offramp train` was given; the first records are older than the heads' own rate."""
        given = self.record["options"]
        chosen = dict(zip(given[::2], given[1::2], strict=True))  # what comes later counts
        return chosen | {"--head-learning-rate": chosen.get("--head-learning-rate", chosen["--learning-rate"])}

    @property
    def recipe(self) -> str:
        """Which way it was trained, and at which learning rates if not at the usual one."""
        recipe, options, depth = self.record["recipe"], self.options, self.record["layers"][-1]
        rate, heads = options["--learning-rate"], options["--head-learning-rate"]
        told = [recipe] if recipe != "static" else [f"static, {depth} layer{'s' if depth > 1 else ''}"]
        told += [rate] if rate != USUAL_RATE else []
        told += [f"heads {heads}"] if heads != rate else []
        return ", ".join(told)

    @property
    def scores(self) -> list[float]:
        """The main score of every exit on the first dev set, in percent."""
        dev = next(iter(self.record["dev"].values()))
        return [100 * one[self.record["metric"]] for one in dev]

    @property
    def minutes(self) -> str:
        """Of training; unknown where it was interrupted and went on."""
        stages = self.record["stages"]
        if any(stage["resumed"] for stage in stages):
            return "–"
        return f"{sum(stage['seconds'] or 0 for stage in stages) / 60:.0f}"

    @cached_property
    def trace(self) -> Trace:
        """What every exit said about the dev rows."""
        kept = load_file(RESULTS / f"{self.name}.safetensors")
        answer_type = TASKS[self.record["task"]].answer_type
        labels = kept["labels"].astype(np.float64 if answer_type.needs_tolerance else np.int64)
        sure = kept.get("uncertainty")
        layers = self.record["layers"]
        about = {"model": {"problem": answer_type.name, "layers": layers, "depth": layers[-1], "faithful": False}}
        nothing = np.empty(0)
        return Trace(
            about,
            kept["logits"].astype(np.float32),
            *(nothing, nothing, nothing, nothing),  # costs, lengths and hashes were not kept
            labels=labels,
            uncertainty=None if sure is None else sure.astype(np.float32),
        )

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which exits answered which rows as labelled: (rows, exits)."""
        trace = self.trace
        return np.stack([trace.answers_at(place) == trace.labels for place in range(len(trace.points))], axis=1)

    def at(self, policy: Policy) -> Point:
        """What a policy gives on these rows."""
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
        """Leaving by entropy, from nobody to everybody at once."""
        return [self.at(policy) for policy in grid("entropy", self.trace.model_spec)]

    def cheapest(self, disagreement: float) -> Point:
        """The fewest layers at which no more than so many percent of the answers change."""
        return min((one for one in self.curve if one.disagreement <= disagreement), key=lambda one: one.layers)


def read() -> list[Trained]:
    """The finished runs, in the order of the script."""
    files = [RESULTS / f"{run.name}.json" for run in RUNS]
    return [Trained(json.loads(file.read_text())) for file in files if file.is_file()]


def group_of(runs: list[Trained], start: str) -> list[Trained]:
    """The runs whose names begin so."""
    return [one for one in runs if one.name.startswith(start)]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Markdown."""
    head = list(head)
    return [
        f"| {' | '.join(head)} |",
        "|---" + "|---:" * (len(head) - 1) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
