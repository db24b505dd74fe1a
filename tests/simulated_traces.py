"""Populations of rows with known risks, from which whole calibrations are simulated.

A population is a trace with all its rows. A calibration sees rows drawn from it with replacement, so the true risk of
whatever it chooses is the mean over the population.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logit
from scipy.stats import norm

from offramp.answers import RANKING, SINGLE_LABEL
from offramp.calibration.risks import Guarantee, Risk
from offramp.evaluation.traces.trace import Trace
from offramp.policies import Policy

__all__ = ["Outcome", "judge", "population", "rankings", "sample", "trace_of"]

LARGEST_RANKING = 25  # documents
CORRELATIONS = (0.6, 0.75, 0.88, 0.96, 0.99)  # of the early exits' scores with the full model's


def trace_of(logits: np.ndarray, clusters: np.ndarray | None = None) -> Trace:
    """Return a trace of these logits, (rows, exits, classes)."""
    rows, exits, classes = logits.shape
    model = {
        "name": "simulated",
        "fingerprint": "",
        "depth": exits,
        "layers": list(range(1, exits + 1)),
        "labels": [f"class {index}" for index in range(classes)],
        "problem": SINGLE_LABEL.name,
        "faithful": False,
        "max_length": 8,
        "parameters": 1,
    }
    about = {
        "offramp": "",
        "model": model,
        "machine": {"backend": "torch", "dtype": "float32"},
        "data": {"name": "simulated", "rows": rows, "fingerprint": ""},
    }
    costs = np.zeros((rows, exits))
    lengths, hashes = np.full(rows, 8), np.arange(rows, dtype=np.uint64)
    return Trace(about, logits.astype(np.float32), costs, costs, lengths, hashes, clusters=clusters)


def population(rare: float, rows: int, seed: int, documents: int | None = None, shared: float = 0.0) -> Trace:
    """Return calibrated exits of a binary classifier that predicts the second class for a fraction `rare` of the rows.

    With `documents`, the rows of a document share a fraction of the variance of their scores (intraclass correlation).
    """
    generator = np.random.default_rng(seed)
    clusters = None if documents is None else np.repeat(np.arange(documents), rows // documents)

    def noise() -> np.ndarray:
        alone = generator.normal(size=rows)
        if clusters is None:
            return alone
        common = generator.normal(size=documents)[clusters]
        return np.sqrt(shared) * common + np.sqrt(1 - shared) * alone

    score, mean = noise(), norm.ppf(rare)
    probabilities = []
    for correlation in CORRELATIONS:
        spread = np.sqrt(1 - correlation**2)
        early = correlation * score + spread * noise()
        probabilities.append(norm.cdf((mean + correlation * early) / spread))
    probabilities.append(norm.cdf((mean + score) * 50))
    log_odds = logit(np.clip(np.stack(probabilities, 1), 1e-9, 1 - 1e-9))
    return trace_of(np.stack([np.zeros_like(log_odds), log_odds], 2), clusters=clusters)


def rankings(queries: int, top_k: int, seed: int) -> Trace:
    """Return exits of a reranker for queries with 1 to 25 documents.

    Scores are rounded, so that many documents of a query have the same score. The exits of some queries are worse than
    those of others.
    """
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, LARGEST_RANKING + 1, size=queries)
    group = np.repeat(np.arange(queries), sizes)
    full = generator.normal(size=len(group))
    noise = generator.gamma(2.0, 0.5, size=queries)[group]  # of the query's exits, 1 on average
    exits = []
    for correlation in CORRELATIONS:
        spread = noise * np.sqrt(1 - correlation**2)
        exits.append(correlation * full + spread * generator.normal(size=len(group)))
    scores = np.round(2 * np.stack([*exits, full], 1), 1)
    trace = trace_of(scores[:, :, None])
    options = {"activation": "identity", "template": None, "top_k": top_k}
    model = trace.about["model"] | {"problem": RANKING.name, "labels": ["relevant"], "options": options}
    return replace(trace, about=trace.about | {"model": model}, group=group)


def sample(whole: Trace, rows: int, generator: np.random.Generator) -> Trace:
    """Return rows (or documents, or queries) drawn with replacement."""
    if whole.group is not None:
        return _queries(whole, generator.integers(len(whole), size=rows))
    if whole.clusters is None:
        return whole.take(generator.integers(len(whole), size=rows))
    size = len(whole) // (int(whole.clusters.max()) + 1)
    drawn = generator.integers(len(whole) // size, size=rows // size)
    indices = (drawn[:, None] * size + np.arange(size)).ravel()
    return replace(whole.take(indices), clusters=np.repeat(np.arange(len(drawn)), size))


def _queries(whole: Trace, drawn: np.ndarray) -> Trace:
    """Return these queries of a trace of rankings, each as often as it was drawn."""
    group = np.asarray(whole.group)
    starts, sizes = np.searchsorted(group, drawn), np.bincount(group)[drawn]
    first = np.cumsum(sizes) - sizes
    rows = np.arange(sizes.sum()) + np.repeat(starts - first, sizes)
    arrays = {name: getattr(whole, name)[rows] for name in ("logits", "spent", "heads", "lengths", "hashes")}
    return replace(whole, **arrays, group=np.repeat(np.arange(len(drawn)), sizes))


@dataclass(frozen=True)
class Outcome:
    """What is true about a calibration: whether it violates its guarantee, its risk and its cost."""

    violated: bool
    risk: float
    layers: float
    lost: float = 0.0  # fraction of the predictions of the second class that change


def judge(whole: Trace, policy: Policy | None, guarantee: Guarantee, tested: set[str] | None = None) -> Outcome:
    """Return the truth about a chosen policy; `tested` are the names of the limits that were guaranteed (all)."""
    if policy is None:
        return Outcome(False, 0.0, float(whole.depth))
    risk, replayed = Risk(guarantee, whole), whole.replay(policy)
    overall = float(risk.losses(replayed).mean())
    violated = overall > guarantee.risk
    if len(risk.limits):
        counted, changed = risk.limit_changes(replayed)
        rates = changed.sum(0) / np.maximum(counted.sum(0), 1)
        for limit, rate in zip(risk.limits.limits, rates, strict=True):
            violated |= rate > limit.risk and (tested is None or limit.name in tested)
    lost = 0.0 if whole.group is not None else float((replayed.answers[whole.full == 1] != 1).mean())
    return Outcome(bool(violated), overall, float(replayed.layer.mean()), lost)
