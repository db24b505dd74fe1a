"""The section of docs/results/quality.md about guarantees, from benchmarks/results/calibration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from calibration_results import RESULTS
from draw_exit_layers import draw_exit_layers
from saved_results import policy_title

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "exit-layers-calibrated.svg"
MODELS = {"minilm": "all-MiniLM-L6-v2", "mpnet": "all-mpnet-base-v2"}
SETTING = """\
Two `joint` models, calibrated with `entropy` on the rows that training set aside, at {risk} % risk and {confidence} %
confidence. Then measured on the {rows} dev rows. `benchmarks/calibration_results.py`, {date}, {cpu}, {threads}
threads. *measured*: speedup over the plain encoder in the same run, {live_rows} texts, including tokenization."""
PHRASES = """\
On dev, the observed risk is above 2 %. GLUE SST-2's training rows are mostly phrases, its dev rows are whole sentences.
Dev is harder than the calibration rows, and a guarantee only covers rows like the calibration rows.

With calibration and test rows from the same distribution: calibrate on a random half of dev, test on the other half,
repeated {halves} times."""
SAMPLING = """\
*Above 2 %* is not the rate of violated guarantees, because the test half has its own sampling error. With {rows} rows,
a true risk of 1.5 %, which satisfies the guarantee, shows as more than 2 % in {chance:.0f} % of the samples. The
simulations in `tests/calibration` know the true risk and test the rate of violations itself."""
HEAD = (
    "model | risk type | policy | risk on calibration rows | fewer layers | risk on dev | 95 % interval | fewer layers"
)
HEAD += " | measured | accuracy"
HALVES = "model | risk type | rows | mean risk on the other half | above 2 % | fewer layers"

Result = tuple[dict[str, Any], str, dict[str, Any]]  # a model's record, the risk type, the result


def read() -> list[Result]:
    """Return the calibrations that found a policy."""
    records = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    return [
        (record, risk_type, result)
        for record in records
        for risk_type, result in record.get("guarantees", record.get("promises")).items()
        if "dev" in result
    ]


def section() -> list[str]:
    """Return the section's lines."""
    results = read()
    lines = ["## Does the guarantee hold on new data?", ""]
    if not results:
        return [*lines, "Not run yet.", ""]
    first, _, result = results[0]
    percent = {key: f"{100 * first[key]:g}" for key in ("risk", "confidence")}
    lines += [SETTING.format(**first | percent), "", *_head(HEAD, 3), *(_row(*entry) for entry in results), ""]
    halves = result["halves"]
    lines += [PHRASES.format(**halves), "", *_head(HALVES, 2), *(_half(*entry) for entry in results), ""]
    chance = 100 * float(stats.binom.sf(int(0.02 * halves["rows"]), halves["rows"], 0.015))
    return [*lines, SAMPLING.format(rows=halves["rows"], chance=chance), ""]


def exits_section() -> list[str]:
    """Return the section about where texts exit, and draw its figure."""
    results = read()
    depth = max(len(result["dev"]["exits"]) for _, _, result in results)
    shares = np.zeros((len(results), depth))
    for row, (_, _, result) in zip(shares, results, strict=True):
        counts = np.array(result["dev"]["exits"])
        row[: len(counts)] = 100 * counts / counts.sum()
    names = [f"{_model(record)}, {risk_type}" for record, risk_type, _ in results]
    draw_exit_layers(FIGURE, names, shares, "SST-2 dev texts by exit layer, %")
    return [
        "## Where texts exit",
        "",
        "The same models and policies as above, on the dev rows. Every layer has an exit: 6 in all-MiniLM-L6-v2, 12 in",
        "all-mpnet-base-v2.",
        "",
        "![Exit layers of the calibrated models](../figures/exit-layers-calibrated.svg)",
        "",
    ]


def summary() -> str:
    """Return one sentence about new data."""
    results = read()
    risks = [100 * _risk(risk_type, result["dev"])[0] for _, risk_type, result in results]
    means = [100 * result["halves"]["mean_risk"] for _, _, result in results]
    return (
        f"A guarantee covers rows like the calibration rows: at {100 * results[0][0]['risk']:g} % risk, similar rows "
        f"showed {min(means):.1f} to {max(means):.1f} % on average, harder rows {min(risks):.1f} to {max(risks):.1f} %."
    )


def _head(names: str, words: int) -> list[str]:
    return [f"| {names} |", "|" + "---|" * words + "---:|" * (names.count("|") + 1 - words)]


def _model(record: dict[str, Any]) -> str:
    return MODELS[record["run"].split("-")[0]]


def _risk(risk_type: str, dev: dict[str, Any]) -> tuple[float, float, float]:
    """Return the observed risk and its interval."""
    if risk_type == "disagreement":
        low, high = dev["agreement_interval"]
        return 1 - dev["point"]["agreement"], 1 - high, 1 - low
    low, high = dev["difference_interval"]
    return -(dev["difference"] or 0.0), -high, -low


def _row(record: dict[str, Any], risk_type: str, result: dict[str, Any]) -> str:
    dev, calibrated = result["dev"], result["calibration"]
    point = dev["point"]
    risk, low, high = _risk(risk_type, dev)
    cells = [
        _model(record),
        risk_type,
        policy_title(calibrated["policy"]),
        f"{calibrated['losses'] / calibrated['test_rows']:.2%}",
        f"{calibrated['speedup']:.2f} ×",
        f"{risk:.2%}",
        f"{low:.1%} to {high:.1%}",
        f"{point['speedup']:.2f} ×",
        f"{result['measured']:.2f} ×",
        f"{100 * point['score']:.1f} (full {100 * record['full']:.1f})",
    ]
    return f"| {' | '.join(cells)} |"


def _half(record: dict[str, Any], risk_type: str, result: dict[str, Any]) -> str:
    half = result["halves"]
    cells = [f"{half['rows']}", f"{half['mean_risk']:.2%}", f"{half['above']:.1%}", f"{half['speedup']:.2f} ×"]
    return f"| {_model(record)} | {risk_type} | {' | '.join(cells)} |"
