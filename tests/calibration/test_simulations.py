"""Whole calibrations on rows drawn from populations with known risks; benchmarks/guarantee_simulations.py has more.

A coarse grid of settings is used, because a jump of the risk across its limit shows errors that a fine grid hides.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from offramp.calibration.choice import choose_with_guarantee
from offramp.calibration.risks import Guarantee
from offramp.evaluation.traces.trace import Trace
from offramp.policies import parse
from tests.simulated_traces import Outcome, judge, population, sample

pytestmark = pytest.mark.usefixtures("one_thread")

RUNS = 300
SETTINGS = [parse(f"entropy:{threshold}") for threshold in (0.0, 0.02, 0.08, 0.15, 0.25, 0.35, 0.45, 0.6)]


def simulate(whole: Trace, guarantee: Guarantee, rows: int, truth: Guarantee | None = None) -> list[Outcome]:
    outcomes, known = [], {}
    for run in range(RUNS):
        trace = sample(whole, rows, np.random.default_rng([1, run]))
        trace = trace if guarantee.group else replace(trace, clusters=None)
        choice = choose_with_guarantee(trace, guarantee, SETTINGS, "")
        tested = frozenset(limit["name"] for limit in choice.evidence.get("limits", ()) if limit["tested"])
        key = choice.policy, tested
        if key not in known:
            known[key] = judge(replace(whole, clusters=None), choice.policy, truth or guarantee, set(tested))
        outcomes.append(known[key])
    return outcomes


def rate(outcomes: list[Outcome]) -> float:
    return float(np.mean([outcome.violated for outcome in outcomes]))


def limit(level: float = 0.1) -> float:
    """The largest violation rate that is consistent with a true rate of δ."""
    return level + 3 * math.sqrt(level * (1 - level) / RUNS)


@pytest.mark.parametrize(
    ("guarantee", "rare", "rows"),
    [
        (Guarantee(risk=0.05), 0.4, 400),
        (Guarantee(risk=0.05, class_risk=0.1), 0.1, 400),
        (Guarantee(risk=0.05, class_risk=0.2, confidence=0.8), 0.05, 500),
        (Guarantee(risk=0.05, keep=("class 1",), recall=0.9), 0.2, 300),
        (Guarantee(risk=0.05, keep=("class 1",), precision=0.9), 0.2, 300),
        (Guarantee(risk=0.05, flag="P(class 1) >= 0.8", recall=0.9), 0.2, 300),
    ],
    ids=["overall", "class", "rare class", "recall", "precision", "flag"],
)
def test_the_guarantee_holds(guarantee, rare, rows):
    outcomes = simulate(population(rare, 20_000, seed=1), guarantee, rows)
    assert rate(outcomes) <= limit(guarantee.level)
    assert np.mean([outcome.layers < 6 for outcome in outcomes]) > 0.5  # most calibrations save layers


def test_a_class_without_a_limit_is_lost():
    """The simulation would notice if the limits were not tested."""
    whole, classes = population(0.02, 20_000, seed=2), Guarantee(risk=0.02, class_risk=0.1)
    without = simulate(whole, Guarantee(risk=0.02), 1200, truth=classes)
    chosen = [outcome for outcome in without if outcome.layers < 6]
    assert len(chosen) > 0.9 * RUNS
    lost = []
    for run in range(20):
        trace = sample(whole, 1200, np.random.default_rng(run))
        choice = choose_with_guarantee(trace, Guarantee(risk=0.02), SETTINGS, "")
        early, rare = whole.replay(choice.policy).answers, whole.full == 1
        lost.append(float((early[rare] == 0).mean()))
    assert np.mean(lost) > 0.5


def test_correlated_rows_need_groups():
    """Documents of 20 rows: as independent rows the guarantee is violated, as groups it holds."""
    whole = population(0.4, 20_000, seed=3, documents=1000, shared=0.7)
    unsafe = judge(replace(whole, clusters=None), SETTINGS[5], Guarantee()).risk
    truth = Guarantee(risk=unsafe - 1e-6)  # the worst case: a setting whose risk is just above the guaranteed one
    assert rate(simulate(whole, truth, 800, truth)) > limit()
    assert rate(simulate(whole, replace(truth, group="document", test="auto"), 800, truth)) <= limit()


def test_on_average_the_mean_risk_is_the_guaranteed_one():
    whole, guarantee = population(0.4, 20_000, seed=4), Guarantee(risk=0.05, average=True)
    outcomes = simulate(whole, guarantee, 400)
    risks = np.array([outcome.risk for outcome in outcomes])
    assert risks.mean() <= 0.05 + 3 * risks.std() / math.sqrt(RUNS)
    careful = np.mean([outcome.risk for outcome in simulate(whole, Guarantee(risk=0.05), 400)])
    assert risks.mean() > careful
