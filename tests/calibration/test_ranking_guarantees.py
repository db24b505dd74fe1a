"""The guarantee of rankings on populations of queries with known risks: different sizes, and ties in scores."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from offramp.answers import RANKING
from offramp.calibration.choice import choose_with_guarantee
from offramp.calibration.estimate_errors import fit_errors
from offramp.calibration.risks import Guarantee, Risk
from offramp.evaluation.traces.trace import Trace
from offramp.policies import TopK
from tests.simulated_traces import trace_of

pytestmark = pytest.mark.usefixtures("one_thread")

RUNS, QUERIES = 100, 80
NOISE = (1.0, 0.5, 0.0)  # of the exits; the last is the full model


def population(queries: int, seed: int, top_k: int) -> Trace:
    """Return queries with 1 to 25 documents, whose scores are rounded, so that many are equal."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 26, queries)
    group = np.repeat(np.arange(queries), sizes)
    full = np.round(2 * generator.normal(size=len(group))) / 2
    scores = np.stack([np.round(4 * (full + noise * generator.normal(size=len(group)))) / 4 for noise in NOISE], 1)
    return grouped(scores[..., None], group, top_k)


def grouped(logits: np.ndarray, group: np.ndarray, top_k: int) -> Trace:
    trace = trace_of(logits)
    options = {"activation": "identity", "template": None, "top_k": top_k}
    model = trace.about["model"] | {"problem": RANKING.name, "options": options}
    return replace(trace, about=trace.about | {"model": model}, group=group)


def sample(whole: Trace, queries: int, generator: np.random.Generator) -> Trace:
    """Return queries drawn with replacement."""
    rows = np.split(np.arange(whole.rows), np.flatnonzero(np.diff(whole.group)) + 1)
    drawn = [rows[index] for index in generator.integers(0, len(rows), queries)]
    group = np.repeat(np.arange(queries), [len(part) for part in drawn])
    return grouped(np.asarray(whole.logits)[np.concatenate(drawn)], group, whole.about["model"]["options"]["top_k"])


@pytest.mark.parametrize(
    ("top_k", "risk_type", "risk"), [(5, "disagreement", 0.1), (5, "changed", 0.25), (1, "disagreement", 0.15)]
)
def test_the_guarantee_is_violated_no_more_often_than_it_says(top_k, risk_type, risk):
    whole = population(400, 0, top_k)
    errors = fit_errors(whole)
    settings = [TopK(top_k, margin, errors) for margin in (6.0, 2.0, 1.4, 1.0, 0.7, 0.4, 0.0)]
    guarantee = Guarantee(risk_type, risk).for_model(RANKING, (), {"top_k": top_k})
    true_risk = {str(policy): Risk(guarantee, whole).losses(whole.replay(policy)).mean() for policy in settings}
    assert true_risk[str(settings[0])] < risk < true_risk[str(settings[-1])]
    violations = found = 0
    for run in range(RUNS):
        trace = replace(sample(whole, QUERIES, np.random.default_rng([2, run])), errors=errors)
        policy = choose_with_guarantee(trace, guarantee, settings, "").policy
        found += policy is not None
        violations += policy is not None and true_risk[str(policy)] > risk
    assert found > RUNS / 2
    assert violations / RUNS <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / RUNS)


def test_errors_are_fitted_within_queries():
    whole = population(300, 1, 5)
    first, second = fit_errors(whole)
    assert first == pytest.approx(1.0, abs=0.1) and second == pytest.approx(0.5, abs=0.1)
    shifted = np.asarray(whole.logits).copy()
    shifted[:, 0] += 10 * (np.asarray(whole.group) % 7)[:, None]  # the same for all documents of a query
    again = fit_errors(grouped(shifted, np.asarray(whole.group), 5))
    assert again[0] == pytest.approx(first, rel=1e-3)


def test_a_query_with_few_documents_loses_nothing():
    whole = population(50, 2, 30)  # no query has more than 25 documents
    policy = TopK(30, 0.0, fit_errors(whole))
    assert set(whole.replay(policy).layer.tolist()) == {len(NOISE)}
    assert Risk(Guarantee(), whole).losses(whole.replay(policy)).sum() == 0
