"""Whether a risk model pays that sees more than the confidence of an exit.

    python benchmarks/risk_features.py NAME FAST FILE [--text-column text]

FAST was made by `offramp adapt`; FILE has texts that nothing has used. Every exit's outputs on them are recorded once.
On one half of the texts, a logistic model per exit is fitted to the changed predictions, from the log-odds of the
prediction (the policy `risk`) and from more features; on the other half, the mean layers are counted at the largest
threshold that changes 2 % of the predictions. Means over random halves. The record is
benchmarks/results/risk_features.json, from which write_exits.py writes a section of docs/results/quality.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import offramp
from offramp.core.machine import cpu_name
from offramp.evaluation.traces.recording import record
from offramp.evaluation.traces.trace import Trace

RESULTS = Path(__file__).parent / "results" / "risk_features.json"
RISK, HALVES = 0.02, 20
Array = NDArray[Any]


def log_odds(logits: Array) -> Array:
    """Return the log-odds of the prediction of every exit, (rows, exits)."""
    logs = log_softmax(logits.astype(np.float64), axis=-1)
    others = np.sort(logs, axis=-1)[..., :-1]
    return np.asarray(logs.max(-1) - np.log(np.exp(others).sum(-1)))


def _confidence(trace: Trace, exit_index: int) -> list[Array]:
    return [log_odds(trace.logits)[:, exit_index]]


def _previous(trace: Trace, exit_index: int) -> list[Array]:
    """Return the log-odds of the exit, and those of the exits before, negative where their class is another."""
    odds, answers = log_odds(trace.logits), trace.logits.argmax(-1)
    same = np.where(answers[:, :exit_index] == answers[:, [exit_index]], 1, -1)
    return [odds[:, exit_index], *(same * odds[:, :exit_index]).T]


def _length(trace: Trace, exit_index: int) -> list[Array]:
    return [*_confidence(trace, exit_index), np.log(trace.lengths)]


def _classes(trace: Trace, exit_index: int) -> list[Array]:
    odds, answers = log_odds(trace.logits)[:, exit_index], trace.logits[:, exit_index].argmax(-1)
    return [array for label in range(trace.logits.shape[-1]) for array in ((answers == label) * odds, answers == label)]


FEATURES: dict[str, Callable[[Trace, int], list[Array]]] = {
    "log-odds of the prediction": _confidence,
    "and of the exits before": _previous,
    "and the number of tokens": _length,
    "for every class": _classes,
}


def layers_at_risk(trace: Trace, features: Callable[[Trace, int], list[Array]], fitted: Array, tested: Array) -> float:
    """Return the mean layers of the tested rows at the largest threshold that changes at most 2 % of them."""
    layers = np.array([point.layer for point in trace.points])
    answers = trace.logits.argmax(-1)
    changed = answers != answers[:, [-1]]
    risks = np.zeros(answers.shape)
    for index in range(len(layers) - 1):
        columns = np.stack(features(trace, index), axis=1)
        model = make_pipeline(StandardScaler(), LogisticRegression(C=100.0, max_iter=1000))
        risks[:, index] = model.fit(columns[fitted], changed[fitted, index]).predict_proba(columns)[:, 1]
    risks[:, -1], best = -1.0, float(layers[-1])
    for threshold in np.geomspace(1e-4, 0.5, 300):
        exits = (risks[tested] < threshold).argmax(1)
        if changed[tested, exits].mean() <= RISK:
            best = min(best, float(layers[exits].mean()))
    return best


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("fast")
    parser.add_argument("file", type=Path)
    parser.add_argument("--text-column", default="text")
    args = parser.parse_args()
    with args.file.open(encoding="utf-8", newline="") as opened:
        texts = [row[args.text_column] for row in csv.DictReader(opened)]
    runner = offramp.load(args.fast, threads=1)
    with tempfile.TemporaryDirectory() as folder:
        trace = record(runner, texts, None, Path(folder) / "trace", "texts", quiet=True, progress=False)
    random, results = np.random.default_rng(0), dict[str, list[float]]()
    for _ in range(HALVES):
        order = random.permutation(len(texts))
        fitted, tested = np.sort(order[::2]), np.sort(order[1::2])
        for name, features in FEATURES.items():
            saved = runner.config.num_layers / layers_at_risk(trace, features, fitted, tested)
            results.setdefault(name, []).append(saved)
    rows = [
        {"features": name, "mean": np.mean(values), "deviation": np.std(values)} for name, values in results.items()
    ]
    about = {"name": args.name, "texts": len(texts), "exits": [point.layer for point in trace.points], "halves": HALVES}
    about |= {"date": date.today().isoformat(), "cpu": cpu_name()}
    RESULTS.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n", "utf-8")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
