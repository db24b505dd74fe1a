"""Several runs side by side: score at equal cost, cost at equal score, and the area between their curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.errors import BadInput, BadValue
from offramp.evaluation.results import Evaluation, Point, read_results
from offramp.originals.elue import elue_score, read_reference, track

__all__ = ["Compared", "Curve", "compare", "curve_of", "reference_curve"]

COSTS = (0.25, 0.4, 0.5, 0.6, 0.75, 1.0)  # shares of what the most expensive full model costs
LAYERS, OPERATIONS = "layers", "MFLOPs"
ALIKE = 0.02  # full models whose operations differ by less have layers that cost the same


@dataclass(frozen=True)
class Curve:
    """The best that a run can do within each cost: its points' upper hull to the left."""

    name: str
    costs: NDArray[np.float64]  # ascending, in the comparison's unit
    scores: NDArray[np.float64]  # never falling: who may spend more need not
    elue: list[tuple[float, float]]  # (operations as ELUE counts, score), each once
    parameters: int

    def at(self, cost: float) -> float | None:
        """The best score within a cost; None where even the cheapest point costs more."""
        place = int(np.searchsorted(self.costs, cost + 1e-9, side="right")) - 1
        return float(self.scores[place]) if place >= 0 else None

    def cost_of(self, score: float) -> float | None:
        """The cheapest cost that reaches a score."""
        place = int(np.searchsorted(self.scores, score - 1e-12, side="left"))
        return float(self.costs[place]) if place < len(self.scores) else None


def unit_of(runs: Sequence[Evaluation]) -> str:
    """Layers where a layer costs the same in all runs; else operations, for a layer of a wider model costs more."""
    depths = {run.model.depth for run in runs}
    full = [_full(run, OPERATIONS) for run in runs]
    return LAYERS if len(depths) == 1 and max(full) <= min(full) * (1 + ALIKE) else OPERATIONS


def cost_of(point: Point, unit: str) -> float:
    """What a point costs."""
    return float(point.mean_layers if unit == LAYERS else point.flops / 1e6)


def _full(run: Evaluation, unit: str) -> float:
    """What the full model costs."""
    return cost_of(max(run.static, key=lambda point: point.mean_layers), unit)


def curve_of(name: str, results: Evaluation, policy: str, unit: str = LAYERS) -> Curve:
    """The curve of one policy of a run (`layer`: its exits alone)."""
    lines = {**results.policies, "layer": results.static}
    if policy not in lines:
        raise BadInput(f"{name} has no curve of {policy!r}; it has {', '.join(lines)}.")
    if not results.data.metrics:
        raise BadInput(f"{name} was evaluated without labels; there is no score to compare.")
    points = sorted(lines[policy], key=lambda point: (cost_of(point, unit), -(point.score or 0.0)))
    costs = np.array([cost_of(point, unit) for point in points])
    scores = np.maximum.accumulate([point.score or 0.0 for point in points])
    counted = {(point.elue_flops, point.score or 0.0) for point in lines[policy] if point.elue_flops is not None}
    return Curve(name, costs, scores, sorted(counted), results.model.parameters)


@dataclass(frozen=True)
class Compared:
    """The tables of a comparison, the first run being what the others are measured against."""

    metric: str
    data: str
    unit: str  # what cost is counted in
    full: float  # what the most expensive full model costs
    curves: tuple[Curve, ...]
    elue: dict[str, float | None] | None

    def at_cost(self) -> list[list[float | None]]:
        """Per run the score at each of COSTS."""
        return [[curve.at(share * self.full) for share in COSTS] for curve in self.curves]

    def at_score(self) -> list[list[float | None]]:
        """Per run the cost that reaches the first run's best score less 2, 1, 0.5 and 0 points."""
        best = float(self.curves[0].scores[-1])
        return [[curve.cost_of(best - less) for less in (0.02, 0.01, 0.005, 0.0)] for curve in self.curves]

    def areas(self) -> list[float]:
        """The mean height of each curve above the first one's, over the costs that both can afford."""
        found = []
        for curve in self.curves:
            start = max(curve.costs[0], self.curves[0].costs[0])
            costs = np.linspace(start, self.full, 2001)
            apart = [(curve.at(cost) or 0.0) - (self.curves[0].at(cost) or 0.0) for cost in costs]
            found.append(float(np.mean(apart)))
        return found


def compare(
    runs: Sequence[Path],
    names: Sequence[str] | None,
    policy: str,
    *,
    reference: Sequence[Path] = (),
    clamp: bool = False,
) -> tuple[Compared, list[Evaluation]]:
    """Read runs on the same data and lay their curves side by side."""
    if len(runs) < 2 and not reference:
        raise BadValue("Compare at least two runs, or one with `elue_reference=`.")
    names = list(names or _names(runs))
    if len(names) != len(runs) or len(set(names)) < len(names):
        raise BadValue(f"{len(runs)} runs need as many different names; got {', '.join(names)}.")
    results = [read_results(run) for run in runs]
    for run, result in zip(runs[1:], results[1:], strict=True):
        _check_same_data(runs[0], results[0], run, result)
    unit = unit_of(results)
    curves = tuple(curve_of(name, result, policy, unit) for name, result in zip(names, results, strict=True))
    scores = None
    if reference:
        known = reference_curve(reference)
        scores = {curve.name: elue_score(curve.elue, known, clamp) if curve.elue else None for curve in curves}
    data = results[0].data
    full = max(*(_full(result, unit) for result in results), *(float(curve.costs[-1]) for curve in curves))
    return Compared(data.metrics[0], data.name, unit, full, curves, scores), results


def _names(runs: Sequence[Path]) -> list[str]:
    """The folders' own names, with the one above where they are alike."""
    own = [run.resolve().name for run in runs]
    return own if len(set(own)) == len(own) else [f"{run.resolve().parent.name}/{run.resolve().name}" for run in runs]


def _check_same_data(first: Path, left: Evaluation, other: Path, right: Evaluation) -> None:
    if left.data.fingerprint != right.data.fingerprint:
        raise BadInput(
            f"{first} is about {left.data.name} ({left.data.rows:,} rows), {other} about other rows "
            f"({right.data.name}, {right.data.rows:,}); evaluate both on the same."
        )
    if left.data.metrics[:1] != right.data.metrics[:1]:
        raise BadInput(f"{first} and {other} are judged by different metrics; evaluate both by the same.")


def reference_curve(given: Sequence[Path]) -> list[tuple[float, float]]:
    """(operations, score) points from a CSV file, or from the user's own static runs, one point each."""
    if len(given) == 1 and given[0].is_file():
        return read_reference(given[0])
    points = []
    for run in given:
        results = read_results(run)
        if not results.data.metrics or results.static[0].elue_flops is None:
            raise BadInput(f"{run} is no reference: it has no score, or ELUE does not count its family.")
        full = max(results.static, key=lambda point: point.mean_layers)
        points.append((full.elue_flops or 0.0, full.score or 0.0))
    return points


def tracks(compared: Compared) -> dict[str, str]:
    """ELUE's parameter track of each run."""
    return {curve.name: track(curve.parameters) for curve in compared.curves}
