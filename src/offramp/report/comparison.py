"""Present a comparison as tables, JSON and a figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from offramp.evaluation.compare import COSTS, LAYERS, CurveComparison, tracks
from offramp.evaluation.results import Evaluation
from offramp.report import figures
from offramp.report.tables import format_table, percent

__all__ = ["as_json", "draw", "tables"]


def draw(folder: Path, compared: CurveComparison, results: Sequence[Evaluation], policy: str) -> None:
    """Draw all curves in one figure, with the exits of every run as markers."""
    pairs = list(zip(compared.curves, results, strict=True))
    lines = [(curve.name, [asdict(point) for point in run.lines[policy]]) for curve, run in pairs]
    exits = [(f"{curve.name}, exits", [asdict(point) for point in run.static]) for curve, run in pairs]
    cost = "mean_layers" if compared.unit == LAYERS else "flops"
    figures.curves(folder, lines, compared.metric, title=f"{compared.data}, {policy}", exits=exits, cost=cost)


def tables(compared: CurveComparison, policy: str) -> str:
    """Return tables of score at equal cost, cost at equal score and mean difference, and of ELUE scores if computed."""
    unit = compared.unit

    def cost(value: float | None) -> str:
        return "–" if value is None else f"{value:,.2f}"

    names = [curve.name for curve in compared.curves]
    costs = [f"{share * compared.full:,.1f} {unit}" for share in COSTS]
    scores_table = format_table(
        [f"{compared.metric} ({policy}) at", *costs],
        ([name, *map(percent, row)] for name, row in zip(names, compared.at_cost(), strict=True)),
    )
    goals = [f"{names[0]} {level}" for level in ("− 2 points", "− 1", "− 0.5", "maximum")]
    costs_table = format_table(
        [f"{unit} to reach", *goals],
        ([name, *map(cost, row)] for name, row in zip(names, compared.at_score(), strict=True)),
    )
    head = ["", f"mean difference to {names[0]}, points"]
    rows = [[name, f"{100 * area:+.2f}"] for name, area in zip(names, compared.areas(), strict=True)]
    if compared.elue is not None:
        head += ["ELUE score, points", "parameters"]
        for row in rows:
            score = compared.elue[row[0]]
            row += ["–" if score is None else f"{100 * score:+.2f}", tracks(compared)[row[0]]]
    return "\n\n".join([scores_table, costs_table, format_table(head, rows)])


def as_json(compared: CurveComparison, policy: str) -> str:
    """Return the content of comparison.json."""
    numbers = {
        "data": compared.data,
        "metric": compared.metric,
        "policy": policy,
        "runs": [curve.name for curve in compared.curves],
        "unit": compared.unit,
        "costs": [share * compared.full for share in COSTS],
        "score_at_cost": compared.at_cost(),
        "cost_at_score": compared.at_score(),
        "area": compared.areas(),
        "elue_score": compared.elue,
        "track": tracks(compared),
    }
    return json.dumps(numbers, indent=1, ensure_ascii=False) + "\n"
