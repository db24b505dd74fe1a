"""Score exits, policies and the oracle from a trace; nothing here runs a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.data.metrics import METRICS, score
from offramp.errors import BadInput, BadValue
from offramp.evaluation.cost import layer_cost
from offramp.evaluation.intervals import bootstrap, bootstrap_mean, exact_proportion
from offramp.evaluation.results import Chosen, Exit, Interval, Point
from offramp.evaluation.traces.trace import Replayed, Trace
from offramp.policies import Policy

__all__ = ["Scorer", "cheapest"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Scorer:
    """Computes scores and costs from a trace, with the metrics of the task and the tolerance of a regression."""

    trace: Trace
    metrics: tuple[str, ...]
    elue: tuple[NDArray[np.int64], NDArray[np.int64]] | None = (
        None  # ELUE's FLOPs per exit: through all exits, and alone
    )
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0 <= self.tolerance < float("inf"):
            raise BadValue(f"`tolerance` must be finite and at least 0, got {self.tolerance:g}.")
        if self.trace.answer_type.needs_tolerance and self.tolerance is None:
            values = self.trace.expected if self.trace.labels is None else self.trace.labels
            object.__setattr__(self, "tolerance", float(f"{np.ptp(values) / 10:.4g}"))
        if self.metrics and self.trace.labels is None:
            raise BadInput("The rows have no labels to score against.")

    # -- points ----------------------------------------------------------------------------------

    def agrees(self, answers: Array) -> NDArray[np.bool_]:
        """Return which predictions are the same as the full model's (or the reference's)."""
        return ~self.trace.answer_type.differ(answers, self.trace.expected, self.tolerance)

    def agreement(self, answers: Array) -> float:
        """Return the mean fraction of a prediction that is the full model's."""
        return float(1 - self.trace.answer_type.changes(answers, self.trace.expected, self.tolerance).mean())

    def point(self, name: str, number: float | None, replayed: Replayed, alone: bool = False) -> Point:
        """Return score and cost of rows that exited; `alone`: without the heads of earlier exits."""
        layers = layer_cost(replayed.layer, self.trace.depth)
        scores = self.scores(replayed.answers)
        return Point(
            policy=name,
            parameter=number,
            score=scores[self.metrics[0]] if self.metrics else None,
            scores=scores,
            agreement=self.agreement(replayed.answers),
            mean_layers=layers.mean_layers,
            cost=layers.layers_run,
            saving=layers.saved,
            speedup=layers.speedup if layers.mean_layers else None,
            flops=float(self.trace.spent_at(replayed.exit, alone).mean()),
            elue_flops=None if self.elue is None else float(self.elue[int(alone)][replayed.exit - 1].mean()),
        )

    def scores(self, answers: Array) -> dict[str, float]:
        """Return all metrics; none without labels."""
        return score(self.metrics, answers, self.trace.labels) if self.trace.labels is not None else {}

    def curve(self, policies: Iterable[Policy]) -> list[Point]:
        """Return one point per policy."""
        return [self.point_of(policy, self.trace.replay(policy)) for policy in policies]

    def point_of(self, policy: Policy, replayed: Replayed) -> Point:
        """Return the point of a policy from its replay."""
        return self.point(str(policy), policy.parameter, replayed, alone=policy.is_static)

    # -- exits -----------------------------------------------------------------------------------

    def exits(self) -> list[Exit]:
        """Return the scores and costs of every exit alone."""
        rows = self.trace.rows
        exits = []
        for index, point in enumerate(self.trace.points):
            answers = self.trace.answers_at(index)
            agreement = self.agreement(answers)
            cost = float(self.trace.spent_at(np.full(rows, point.number), alone=True).mean())
            exits.append(Exit(point.number, point.layer, self.scores(answers), self.interval(answers), agreement, cost))
        return exits

    def interval(self, answers: Array) -> Interval | None:
        """Return the bootstrap interval of the main metric."""
        if not self.metrics or self.trace.labels is None:
            return None
        metric, labels = METRICS[self.metrics[0]], np.asarray(self.trace.labels)
        if metric.per_row is not None:
            return bootstrap_mean(metric.per_row(answers, labels))
        return bootstrap(metric.compute, answers, labels)

    def operating_point(self, policy: Policy) -> Chosen:
        """Return the operating point with intervals."""
        replayed = self.trace.replay(policy)
        point = self.point_of(policy, replayed)
        counts = np.bincount(replayed.exit, minlength=len(self.trace.points) + 1)[1:]
        difference, difference_interval = self._difference(replayed.answers)
        return Chosen(
            **{field.name: getattr(point, field.name) for field in fields(Point)},
            exits=tuple(int(count) for count in counts),
            interval=self.interval(replayed.answers),
            agreement_interval=self._agreement_interval(replayed.answers),
            difference=difference,
            difference_interval=difference_interval,
        )

    def _agreement_interval(self, answers: Array) -> Interval:
        if self.trace.answer_type.has_partial_changes:
            return bootstrap_mean(1 - self.trace.answer_type.changes(answers, self.trace.expected, self.tolerance))
        return exact_proportion(int(self.agrees(answers).sum()), len(self.trace))

    def _difference(self, answers: Array) -> tuple[float | None, Interval | None]:
        if not self.metrics or self.trace.labels is None:
            return None, None
        metric, labels, full = METRICS[self.metrics[0]], np.asarray(self.trace.labels), self.trace.full
        value = metric.compute(answers, labels) - metric.compute(full, labels)
        if metric.per_row is not None:
            differences = metric.per_row(answers, labels) * 1.0 - metric.per_row(full, labels)
            return value, bootstrap_mean(differences)
        return value, bootstrap(lambda a, b, y: metric.compute(a, y) - metric.compute(b, y), answers, full, labels)

    # -- the oracle ------------------------------------------------------------------------------

    def oracle(self) -> list[Point]:
        """Return the curve of an oracle that knows the labels.

        Every row exits at the first correct exit among the first k, or at the first exit if none is correct. For
        accuracy no policy can do better at that cost; for other metrics it is a guide, not a bound. In a regression a
        row exits where its prediction is closest to the label.
        """
        labels = self.trace.labels
        if labels is None or self.trace.group is not None:  # the rows of an example exit separately
            return []
        answers = np.stack(
            [self.trace.answers_at(index) for index in range(len(self.trace.points))]
        )  # (exits, rows, …)
        distance = self.trace.answer_type.distance(answers, labels)  # (exits, rows)
        rows, layers = np.arange(len(self.trace)), np.array([point.layer for point in self.trace.points])
        points = []
        for k in range(1, len(layers) + 1):
            index = distance[:k].argmin(0)  # the first one if several are equally close
            replayed = Replayed(index + 1, layers[index], answers[index, rows])
            points.append(self.point(f"oracle:{layers[k - 1]}", float(layers[k - 1]), replayed))
        return points


def cheapest(points: Sequence[Point], disagreement: float) -> Point:
    """Return the cheapest point with at most this fraction of changed predictions."""
    valid = [point for point in points if 1 - point.agreement <= disagreement + 1e-12]
    return min(valid, key=lambda point: point.mean_layers) if valid else points[0]
