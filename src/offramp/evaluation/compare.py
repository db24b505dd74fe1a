"""Compare runs: score at equal cost, cost at equal score, and the area between their curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.errors import BadInput, BadValue
from offramp.evaluation.results import Evaluation, Point, read_results
from offramp.originals.elue import elue_score, read_reference, track

__all__ = ["Curve", "CurveComparison", "compare", "curve_of", "reference_curve"]

COSTS = (0.25, 0.4, 0.5, 0.6, 0.75, 1.0)  # fractions of the cost of the most expensive full model
LAYERS, OPERATIONS = "layers", "MFLOPs"
SAME_COST = 0.02  # relative difference of full-model operations below which layers count as equally expensive


@dataclass(frozen=True)
class Curve:
    """The best score of a run within every cost."""

    name: str
    costs: NDArray[np.float64]  # ascending, in the comparison's unit
    scores: NDArray[np.float64]  # non-decreasing
    elue: list[tuple[float, float]]  # distinct points (FLOPs as ELUE counts, score)
    parameters: int

    def at(self, cost: float) -> float | None:
        """Return the best score within a cost; None if all points cost more."""
        index = int(np.searchsorted(self.costs, cost + 1e-9, side="right")) - 1
        return float(self.scores[index]) if index >= 0 else None

    def cost_of(self, score: float) -> float | None:
        """Return the lowest cost that reaches a score; None if none does."""
        index = int(np.searchsorted(self.scores, score - 1e-12, side="left"))
        return float(self.costs[index]) if index < len(self.scores) else None


def unit_of(runs: Sequence[Evaluation]) -> str:
    """Return the cost unit: layers if a layer costs the same in all runs, else operations."""
    depths = {run.model.depth for run in runs}
    costs = [_full_cost(run, OPERATIONS) for run in runs]
    return LAYERS if len(depths) == 1 and max(costs) <= min(costs) * (1 + SAME_COST) else OPERATIONS


def cost_of(point: Point, unit: str) -> float:
    """Return the cost of a point."""
    return float(point.mean_layers if unit == LAYERS else point.flops / 1e6)


def _full_cost(run: Evaluation, unit: str) -> float:
    """Return the cost of the full model."""
    return cost_of(max(run.static, key=lambda point: point.mean_layers), unit)


def curve_of(name: str, results: Evaluation, policy: str, unit: str = LAYERS) -> Curve:
    """Return the curve of one policy of a run (`layer`: its fixed exits)."""
    curves = {**results.policies, "layer": results.static}
    if policy not in curves:
        raise BadInput(f"{name} has no curve of policy {policy!r}. Available: {', '.join(curves)}.")
    if not results.data.metrics:
        raise BadInput(f"{name} was evaluated without labels, so it has no scores to compare.")
    points = sorted(curves[policy], key=lambda point: (cost_of(point, unit), -(point.score or 0.0)))
    costs = np.array([cost_of(point, unit) for point in points])
    scores = np.maximum.accumulate([point.score or 0.0 for point in points])
    elue_points = {(point.elue_flops, point.score or 0.0) for point in curves[policy] if point.elue_flops is not None}
    return Curve(name, costs, scores, sorted(elue_points), results.model.parameters)


@dataclass(frozen=True)
class CurveComparison:
    """The curves of several runs; the first run is the baseline."""

    metric: str
    data: str
    unit: str  # of cost
    full: float  # cost of the most expensive full model
    curves: tuple[Curve, ...]
    elue: dict[str, float | None] | None

    def at_cost(self) -> list[list[float | None]]:
        """Return for every run the score at each of `COSTS`."""
        return [[curve.at(share * self.full) for share in COSTS] for curve in self.curves]

    def at_score(self) -> list[list[float | None]]:
        """Return for every run the cost of the first run's best score minus 2, 1, 0.5 and 0 points."""
        best = float(self.curves[0].scores[-1])
        return [[curve.cost_of(best - margin) for margin in (0.02, 0.01, 0.005, 0.0)] for curve in self.curves]

    def areas(self) -> list[float]:
        """Return the mean score difference of every curve to the first one, over the costs that both reach."""
        areas = []
        for curve in self.curves:
            start = max(curve.costs[0], self.curves[0].costs[0])
            costs = np.linspace(start, self.full, 2001)
            differences = [(curve.at(cost) or 0.0) - (self.curves[0].at(cost) or 0.0) for cost in costs]
            areas.append(float(np.mean(differences)))
        return areas


def compare(
    runs: Sequence[Path],
    names: Sequence[str] | None,
    policy: str,
    *,
    reference: Sequence[Path] = (),
    clamp: bool = False,
) -> tuple[CurveComparison, list[Evaluation]]:
    """Read runs on the same data and compare their curves."""
    if len(runs) < 2 and not reference:
        raise BadValue("Compare at least two runs, or one with `elue_reference=`.")
    names = list(names or _names(runs))
    if len(names) != len(runs) or len(set(names)) < len(names):
        raise BadValue(f"{len(runs)} runs need {len(runs)} different names, got {', '.join(names)}.")
    results = [read_results(run) for run in runs]
    for run, result in zip(runs[1:], results[1:], strict=True):
        _check_same_data(runs[0], results[0], run, result)
    unit = unit_of(results)
    curves = tuple(curve_of(name, result, policy, unit) for name, result in zip(names, results, strict=True))
    scores = None
    if reference:
        reference_points = reference_curve(reference)
        scores = {
            curve.name: elue_score(curve.elue, reference_points, clamp) if curve.elue else None for curve in curves
        }
    data = results[0].data
    full = max(*(_full_cost(result, unit) for result in results), *(float(curve.costs[-1]) for curve in curves))
    return CurveComparison(data.metrics[0], data.name, unit, full, curves, scores), results


def _names(runs: Sequence[Path]) -> list[str]:
    """Return the folder names, with the parent folder if they are not unique."""
    names = [run.resolve().name for run in runs]
    return (
        names
        if len(set(names)) == len(names)
        else [f"{run.resolve().parent.name}/{run.resolve().name}" for run in runs]
    )


def _check_same_data(first: Path, first_results: Evaluation, other: Path, other_results: Evaluation) -> None:
    if first_results.data.fingerprint != other_results.data.fingerprint:
        raise BadInput(
            f"{first} was evaluated on {first_results.data.name} ({first_results.data.rows:,} rows), {other} on other "
            f"rows ({other_results.data.name}, {other_results.data.rows:,}). Evaluate both on the same rows."
        )
    if first_results.data.metrics[:1] != other_results.data.metrics[:1]:
        raise BadInput(f"{first} and {other} use different metrics. Evaluate both with the same `metric=`.")


def reference_curve(paths: Sequence[Path]) -> list[tuple[float, float]]:
    """Return (FLOPs, score) points from a CSV file, or from evaluations of static models, one point each."""
    if len(paths) == 1 and paths[0].is_file():
        return read_reference(paths[0])
    points = []
    for run in paths:
        results = read_results(run)
        if not results.data.metrics or results.static[0].elue_flops is None:
            raise BadInput(
                f"{run} cannot be an ELUE reference: it has no scores, or ELUE does not define FLOPs for its family."
            )
        full = max(results.static, key=lambda point: point.mean_layers)
        points.append((full.elue_flops or 0.0, full.score or 0.0))
    return points


def tracks(compared: CurveComparison) -> dict[str, str]:
    """Return the ELUE parameter track of every run."""
    return {curve.name: track(curve.parameters) for curve in compared.curves}
