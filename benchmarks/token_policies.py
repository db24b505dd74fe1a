"""How sure a tagger must be to exit: criteria over the words of a text, and words that exit alone, on a recorded trace.

    python benchmarks/token_policies.py TRACE --name gte-small-joint

TRACE is the trace of `offramp evaluate` on texts that the tagger was not trained on. Each criterion gets a logistic
curve per exit on one half of the texts; on the other half, the threshold is the one that changes the given fraction of
the texts. The mean and standard deviation over five random halves are recorded in `results/tokens/policies-NAME.json`.

- least: the least certain word decides (SENTEE, Li et al., ACL 2021).
- least 2, least 3: the mean of the two or three least certain words.
- windows: the mean over a word and its two neighbours, then the least certain.
- product: all words are right, if words were independent.
- words (TOKEE): each word exits alone once it and its neighbours are sure; a word that has exited costs a sixth of a
  layer, because the others attend to it. The hidden states of such words are those of a full pass here, so the result
  is optimistic.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import offramp
from offramp.answers.token_summary import LABELS, SCORES
from offramp.calibration.risk_model import fit_curves
from offramp.core.machine import cpu_name
from offramp.evaluation.traces.reading import read_trace

RESULTS = Path(__file__).parent / "results" / "tokens"
TARGETS = (0.01, 0.02, 0.05)  # fractions of texts with another label
HALVES = 5
FROZEN = 1 / 6  # of the operations of a layer: keys and values of a token that has exited
EPS = 1e-6
LENGTHS = ((1, 5), (6, 15), (16, 1000))  # words

Array = NDArray[Any]


def log_odds(probability: Array) -> Array:
    """Return the log-odds of a clipped probability."""
    clipped = np.clip(probability, EPS, 1 - EPS)
    return np.asarray(np.log(clipped / (1 - clipped)))


def word_certainty(scores: Array, words: list[Array]) -> list[Array]:
    """Return the log-odds of the words of each text and exit, a list over texts of (exits, words)."""
    return [log_odds(scores[row][:, words[row]]) for row in range(len(scores))]


def neighbours(values: Array, combine: Any) -> Array:
    """Return the combination of each word with its two neighbours, (exits, words)."""
    padded = np.pad(values, ((0, 0), (1, 1)), constant_values=np.nan)
    return np.asarray(combine(np.stack([padded[:, :-2], values, padded[:, 2:]]), axis=0))


def criteria(certainty: list[Array]) -> dict[str, Array]:
    """Return the certainty of each text at each exit by criterion, (texts, exits)."""

    def least(values: Array, count: int) -> Array:
        return np.asarray(np.sort(values, axis=1)[:, :count].mean(1))

    def product(values: Array) -> Array:
        return log_odds(np.exp(-np.logaddexp(0, -values).sum(1)))

    return {
        "least": np.stack([least(values, 1) for values in certainty]),
        "least 2": np.stack([least(values, 2) for values in certainty]),
        "least 3": np.stack([least(values, 3) for values in certainty]),
        "windows": np.stack([neighbours(values, np.nanmean).min(1) for values in certainty]),
        "product": np.stack([product(values) for values in certainty]),
    }


def layers_at(risks: Array, changed: Array, layers: Array, target: float) -> float:
    """Return the mean exit layer at the largest threshold that changes at most this fraction of the texts.

    `risks` is (texts, early exits), `changed` and `layers` have the last exit, too.
    """
    best = float(layers[-1])
    for threshold in np.unique(np.quantile(risks, np.linspace(0, 1, 400))):
        exits = np.concatenate([risks <= threshold, np.ones((len(risks), 1), bool)], 1).argmax(1)
        if changed[np.arange(len(exits)), exits].mean() <= target:
            best = min(best, float(layers[exits].mean()))
    return best


def words_alone(risks: list[Array], wrong: list[Array], layers: Array, target: float) -> float:
    """Return the mean layers per word, counted in operations, if each word exits alone."""
    best = float(layers[-1])
    flat = np.concatenate([values.ravel() for values in risks])
    for threshold in np.unique(np.quantile(flat, np.linspace(0, 1, 200))):
        changed, cost, count = 0, 0.0, 0
        for values, errors in zip(risks, wrong, strict=True):
            exits = np.concatenate([values <= threshold, np.ones((1, values.shape[1]), bool)]).argmax(0)
            changed += bool(errors[exits, np.arange(len(exits))].any())
            own, deepest = layers[exits], layers[exits].max()
            cost += float((own + FROZEN * (deepest - own)).sum())
            count += len(exits)
        if changed <= target * len(risks):
            best = min(best, cost / count)
    return best


def profile(changed: Array, words: list[Array], labels: Array, layers: Array) -> dict[str, Any]:
    """Return the fraction of texts with equal labels at each exit: of all, by length, with and without entities."""
    count = np.array([len(positions) for positions in words])
    tagged = np.array([bool((labels[row, -1, words[row]] != 0).any()) for row in range(len(words))])
    groups = {f"{low} to {high} words": (count >= low) & (count <= high) for low, high in LENGTHS}
    groups |= {"all": np.ones(len(count), bool), "with entities": tagged, "without entities": ~tagged}
    return {
        name: {"texts": int(rows.sum()), "same": (1 - changed[rows].mean(0)).round(4).tolist()}
        for name, rows in groups.items()
        if rows.any()
    } | {"layers": layers.tolist()}


def main() -> None:
    """Read the trace, measure all criteria, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--name", required=True)
    args = parser.parse_args()
    trace = read_trace(args.trace)
    layers = np.array([point.layer for point in trace.points])
    labels = np.asarray(trace.logits[:, :, LABELS]).astype(int)
    scores = np.asarray(trace.logits[:, :, SCORES])
    kept = np.flatnonzero((labels[:, -1] >= 0).any(1))
    labels, scores = labels[kept], scores[kept]
    words = [np.flatnonzero(row >= 0) for row in labels[:, -1]]
    wrong = [(labels[row][:, words[row]] != labels[row, -1, words[row]]) for row in range(len(words))]
    changed = np.stack([errors.any(1) for errors in wrong])
    certainty = word_certainty(scores, words)
    values = criteria(certainty)
    results: dict[str, dict[str, list[float]]] = {}
    for half in range(HALVES):
        order = np.random.default_rng(half).permutation(len(words))
        fit, test = order[: len(order) // 2], order[len(order) // 2 :]
        for name, value in values.items():
            offsets, slopes = (np.asarray(part) for part in fit_curves(value[fit][:, :-1], changed[fit][:, :-1]))
            risks = 1 / (1 + np.exp(slopes * value[test][:, :-1] - offsets))
            for target in TARGETS:
                found = layers_at(risks, changed[test], layers, target)
                results.setdefault(name, {}).setdefault(str(target), []).append(found)
        smooth = [neighbours(row, np.nanmin)[:-1] for row in certainty]
        curves = fit_curves(
            np.concatenate([smooth[row].T for row in fit]), np.concatenate([wrong[row][:-1].T for row in fit])
        )
        offsets, slopes = (np.asarray(part)[:, None] for part in curves)
        word_risks = [1 / (1 + np.exp(slopes * smooth[row] - offsets)) for row in test]
        for target in TARGETS:
            found = words_alone(word_risks, [wrong[row] for row in test], layers, target)
            results.setdefault("words", {}).setdefault(str(target), []).append(found)
    record = {
        "texts": len(words),
        "layers": layers.tolist(),
        "mean_layers": {
            name: {target: [round(float(np.mean(v)), 3), round(float(np.std(v)), 3)] for target, v in row.items()}
            for name, row in results.items()
        },
        "profile": profile(changed, words, labels, layers),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "offramp": offramp.__version__,
        "machine": cpu_name(),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"policies-{args.name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
