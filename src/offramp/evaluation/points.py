"""Points and curves: every exit's worth, every policy's, and the limit of what any policy could reach.

Pure functions of a trace; nothing here runs a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.data.metrics import METRICS, score
from offramp.errors import BadInput, BadValue
from offramp.evaluation.cost import layer_cost
from offramp.evaluation.intervals import bootstrap, bootstrap_mean, exact_share
from offramp.evaluation.results import Chosen, Exit, Interval, Point
from offramp.evaluation.traces.trace import Replayed, Trace
from offramp.policies import Policy

__all__ = ["Scorer", "cheapest"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Scorer:
    """A trace with the task's metrics (none without labels) and a regression's tolerance."""

    trace: Trace
    metrics: tuple[str, ...]
    elue: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None  # as ELUE counts: passing every exit, and alone
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0 <= self.tolerance < float("inf"):
            raise BadValue(f"`tolerance` is {self.tolerance:g}; it is finite and not below 0.")
        if self.trace.answer_type.needs_tolerance and self.tolerance is None:
            values = self.trace.expected if self.trace.labels is None else self.trace.labels
            object.__setattr__(self, "tolerance", float(f"{np.ptp(values) / 10:.4g}"))
        if self.metrics and self.trace.labels is None:
            raise BadInput("The rows have no labels to score against.")

    # -- points ----------------------------------------------------------------------------------

    def agrees(self, answers: Array) -> NDArray[np.bool_]:
        """Which rows have the answer that is expected: the full model's, or a reference's."""
        return ~self.trace.answer_type.differ(answers, self.trace.expected, self.tolerance)

    def point(self, name: str, number: float | None, replayed: Replayed, alone: bool = False) -> Point:
        """Score and cost of rows that left somewhere; `alone`: no exit on the way was asked."""
        layers = layer_cost(replayed.layer, self.trace.depth)
        scores = self.scores(replayed.answers)
        return Point(
            policy=name,
            parameter=number,
            score=scores[self.metrics[0]] if self.metrics else None,
            scores=scores,
            agreement=float(self.agrees(replayed.answers).mean()),
            mean_layers=layers.mean_layers,
            cost=layers.layers_run,
            saving=layers.saved,
            speedup=layers.speedup if layers.mean_layers else None,
            flops=float(self.trace.spent_at(replayed.exit, alone).mean()),
            elue_flops=None if self.elue is None else float(self.elue[int(alone)][replayed.exit - 1].mean()),
        )

    def scores(self, answers: Array) -> dict[str, float]:
        """Every metric; none without labels."""
        return score(self.metrics, answers, self.trace.labels) if self.trace.labels is not None else {}

    def curve(self, policies: Iterable[Policy]) -> list[Point]:
        """One point per policy."""
        return [self.point_of(policy, self.trace.replay(policy)) for policy in policies]

    def point_of(self, policy: Policy, replayed: Replayed) -> Point:
        """The point of a policy, from where rows left under it."""
        return self.point(str(policy), policy.parameter, replayed, alone=policy.is_static)

    # -- exits -----------------------------------------------------------------------------------

    def exits(self) -> list[Exit]:
        """Every exit alone, with the interval of its main metric."""
        rows = self.trace.rows
        found = []
        for place, point in enumerate(self.trace.points):
            answers = self.trace.answers_of(place)
            agreement = float(self.agrees(answers).mean())
            cost = float(self.trace.spent_at(np.full(rows, point.number), alone=True).mean())
            found.append(Exit(point.number, point.layer, self.scores(answers), self.interval(answers), agreement, cost))
        return found

    def interval(self, answers: Array) -> Interval | None:
        """The bootstrap interval of the main metric."""
        if not self.metrics or self.trace.labels is None:
            return None
        metric, labels = METRICS[self.metrics[0]], np.asarray(self.trace.labels)
        if metric.per_row is not None:
            return bootstrap_mean(metric.per_row(answers, labels))
        return bootstrap(metric.compute, answers, labels)

    def choose(self, policy: Policy) -> Chosen:
        """The operating point, with intervals."""
        replayed = self.trace.replay(policy)
        point = self.point_of(policy, replayed)
        agreeing = int(self.agrees(replayed.answers).sum())
        counts = np.bincount(replayed.exit, minlength=len(self.trace.points) + 1)[1:]
        difference, around = self._difference(replayed.answers)
        return Chosen(
            **{one.name: getattr(point, one.name) for one in fields(Point)},
            exits=tuple(int(count) for count in counts),
            interval=self.interval(replayed.answers),
            agreement_interval=exact_share(agreeing, len(self.trace)),
            difference=difference,
            difference_interval=around,
        )

    def _difference(self, answers: Array) -> tuple[float | None, Interval | None]:
        if not self.metrics or self.trace.labels is None:
            return None, None
        metric, labels, full = METRICS[self.metrics[0]], np.asarray(self.trace.labels), self.trace.full
        value = metric.compute(answers, labels) - metric.compute(full, labels)
        if metric.per_row is not None:
            apart = metric.per_row(answers, labels) * 1.0 - metric.per_row(full, labels)
            return value, bootstrap_mean(apart)
        return value, bootstrap(lambda a, b, y: metric.compute(a, y) - metric.compute(b, y), answers, full, labels)

    # -- the limit -------------------------------------------------------------------------------

    def oracle(self) -> list[Point]:
        """Who knows the labels: each row leaves at its earliest right exit among the first k, hopeless ones at once.

        For accuracy no policy can do better at that cost. For other metrics it is a guide, not a bound; a regression's
        row leaves at the exit closest to its label.
        """
        labels = self.trace.labels
        if labels is None or self.trace.group is not None:  # an example's rows exit each for itself
            return []
        every = np.stack([self.trace.answers_of(place) for place in range(len(self.trace.points))])  # (exits, rows, …)
        far = self.trace.answer_type.distance(every, labels)  # (exits, rows)
        rows, layers = np.arange(len(self.trace)), np.array([point.layer for point in self.trace.points])
        points = []
        for k in range(1, len(layers) + 1):
            place = far[:k].argmin(0)  # the first of the best
            leaving = Replayed(place + 1, layers[place], every[place, rows])
            points.append(self.point(f"oracle:{layers[k - 1]}", float(layers[k - 1]), leaving))
        return points


def cheapest(points: Sequence[Point], disagreement: float) -> Point:
    """The cheapest point with at most so many other answers than the full model's."""
    fine = [point for point in points if 1 - point.agreement <= disagreement + 1e-12]
    return min(fine, key=lambda point: point.mean_layers) if fine else points[0]
