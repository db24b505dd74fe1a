"""The part of docs/results.md about promises, from benchmarks/results/calibration."""

from __future__ import annotations

import json
from typing import Any

from scipy import stats

from calibration_results import RESULTS

SETTING = """\
Calibrated on the rows that training set aside, at risk {risk:.0%} and confidence {confidence:.0%}, by entropy; then
seen on the {rows} dev rows. {date}, {cpu}, {threads} threads; seconds against the plain encoder in the same run,
{live_rows} texts, tokenising included (`benchmarks/calibration_results.py`)."""
PHRASES = """\
GLUE SST-2's training rows are mostly phrases, its dev rows whole sentences: dev is harder than what the guarantee was
made on, and a guarantee holds only for rows like those. So the same with dev alone, calibrated on a random half and
checked on the other, {halves} times:"""
SAMPLING = """\
*Above* is not the rate at which promises are broken: it counts the other half's own sampling error too. With {rows}
rows a true risk of 1.5 %, well within the guarantee, shows above 2 % in {chance:.0%} of samples. The simulations in
`tests/calibration/test_promises.py` know the true risk and test the rate itself."""
HEAD = "model | guarantee | policy | risk there | fewer layers | risk on dev | 95 % | fewer layers | measured | acc"
HALVES = "model | guarantee | rows | mean risk on the other half | above 2 % | fewer layers"


def section() -> list[str]:
    """Markdown lines."""
    found = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    lines = ["## A guarantee and what became of it", ""]
    if not found:
        return [*lines, "Not run yet.", ""]
    kept = [(record, of, told) for record in found for of, told in record["promises"].items() if "dev" in told]
    lines += [SETTING.format(**found[0]), "", *_head(HEAD, 3), *(_row(*one) for one in kept), ""]
    half = kept[0][2]["halves"]
    lines += [PHRASES.format(**half), "", *_head(HALVES, 2), *(_half(*one) for one in kept), ""]
    chance = float(stats.binom.sf(int(0.02 * half["rows"]), half["rows"], 0.015))
    return [*lines, SAMPLING.format(rows=half["rows"], chance=chance), ""]


def _head(names: str, words: int) -> list[str]:
    return [f"| {names} |", "|" + "---|" * words + "---:|" * (names.count("|") + 1 - words)]


def _row(record: dict[str, Any], of: str, told: dict[str, Any]) -> str:
    dev, own = told["dev"], told["calibration"]
    point = dev["point"]
    risk, (low, high) = -(dev["difference"] or 0.0), (-bound for bound in reversed(dev["difference_interval"]))
    if of == "disagreement":
        risk, (low, high) = 1 - point["agreement"], (1 - bound for bound in reversed(dev["agreement_interval"]))
    cells = [
        record["run"],
        of,
        f"`{own['policy']}`",
        f"{own['losses'] / own['test_rows']:.2%}",
        f"{own['speedup']:.2f} ×",
        f"{risk:.2%}",
        f"{low:.1%} to {high:.1%}",
        f"{point['speedup']:.2f} ×",
        f"{told['measured']:.2f} ×",
        f"{100 * point['score']:.1f} (full {100 * record['full']:.1f})",
    ]
    return f"| {' | '.join(cells)} |"


def _half(record: dict[str, Any], of: str, told: dict[str, Any]) -> str:
    half = told["halves"]
    cells = [f"{half['rows']}", f"{half['mean_risk']:.2%}", f"{half['above']:.1%}", f"{half['speedup']:.2f} ×"]
    return f"| {record['run']} | {of} | {' | '.join(cells)} |"
