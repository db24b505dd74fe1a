"""The choice of exits: sets of exits with their best threshold within the risk, by estimated time."""

from __future__ import annotations

import numpy as np
import pytest

from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.tuning.choosing import TuneOptions, candidates, suggest_larger_risk
from offramp.calibration.tuning.costs import Costs, _fit, _measured_rows, batch_sizes
from offramp.calibration.tuning.search import estimate_seconds, search
from offramp.calibration.tuning.threshold_grids import TUNABLE, threshold_grid
from offramp.evaluation.traces.trace import Trace

ROWS = 400


def trace_of(errors: tuple[float, ...], seed: int = 0) -> Trace:
    """Two classes; exit i differs from the last one on a fraction of the rows, with low confidence."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, ROWS)
    logits = np.zeros((ROWS, len(errors) + 1, 2), np.float32)
    for index, share in enumerate((*errors, 0.0)):
        wrong = np.arange(ROWS) < round(share * ROWS)
        rng.shuffle(wrong)
        sure = np.where(wrong, 0.3, 3.0) + rng.random(ROWS) * 0.2
        logits[np.arange(ROWS), index, np.where(wrong, 1 - truth, truth)] = sure
    layers = list(range(1, len(errors) + 2))
    model = {"problem": "single_label_classification", "layers": layers, "depth": layers[-1], "faithful": False}
    ones = np.ones((ROWS, len(layers)))
    about = {"model": model | {"labels": ["a", "b"]}}
    return Trace(about, logits, ones, ones, np.full(ROWS, 9), np.arange(ROWS))


def costs(layers: int, segment_overhead: float = 0.0, exit_overhead: float = 0.0) -> Costs:
    per_row, per_call = np.array([0.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0, 0.0])
    return Costs(np.tile(per_row, (layers, 1)), segment_overhead * per_call, exit_overhead * per_call)


def test_the_cheapest_set_within_the_risk_comes_first():
    trace, guarantee = trace_of((0.2, 0.1, 0.05)), Guarantee("disagreement", 0.02)
    risk = Risk(guarantee, trace)
    losses = risk.losses_per_exit()
    thresholds_for = threshold_grid("confidence", trace, losses)
    results = search(trace, thresholds_for, costs(4), 32, losses, risk.limits, guarantee.risk, 1.0, [0, 1, 2])
    assert results == sorted(results, key=lambda candidate: candidate.seconds)
    assert all(candidate.risk <= 0.02 and candidate.exit_indices[-1] == 3 for candidate in results)
    assert len({candidate.exit_indices for candidate in results}) == 7  # all non-empty sets of three early exits
    assert results[0].exit_indices[0] == 0  # the fastest set has the first exit


def test_expensive_exits_lead_to_fewer_exits():
    trace, guarantee, options = (
        trace_of((0.2, 0.1, 0.05)),
        Guarantee("disagreement", 0.02),
        TuneOptions(policy="entropy"),
    )
    cheap, expensive = (
        candidates(trace, guarantee, costs(4, exit_overhead=seconds), options, [0, 1, 2])[0] for seconds in (0.0, 9.0)
    )
    assert len(expensive.exit_indices) < len(cheap.exit_indices)


def test_long_rows_cost_what_they_take():
    """Ten short rows and ten long ones: rows of median length would say nothing about the cost."""
    per_token = Costs(np.tile([0.0, 0.0, 1.0, 0.0], (2, 1)), np.zeros(4), np.zeros(4), encoding=0.5)
    lengths, all_stay = np.repeat([10, 100], 10), np.ones(20, np.int64)
    assert estimate_seconds(all_stay, lengths, (0, 1), per_token, 10) == 2 * 55 + 0.5
    short_exit = np.repeat([0, 1], 10)
    assert estimate_seconds(short_exit, lengths, (0, 1), per_token, 10) == 55 + 50 + 0.5
    assert estimate_seconds(all_stay, lengths, (0, 1), per_token, 20) == 2 * 100 + 0.5  # padded to the longest


def test_the_fit_finds_the_costs_of_calls_rows_and_tokens():
    lengths = np.sort(np.random.default_rng(0).lognormal(3, 0.8, 300).astype(int) + 3)
    groups = _measured_rows(np.arange(300), lengths, 32)
    assert min(map(len, groups)) == 1 and max(map(len, groups)) == 32
    sizes = batch_sizes(np.array([len(rows) for rows in groups]), np.array([lengths[rows].max() for rows in groups]))
    true = np.array([5e-5, 1e-6, 2e-5, 1e-8])
    np.testing.assert_allclose(_fit(sizes, sizes @ true), true, rtol=1e-6)
    merged = Costs(np.stack([true, 2 * true, 3 * true]), true, true).select((1, 2))
    np.testing.assert_allclose(merged.layers, [3 * true, 3 * true])


def test_exits_that_may_not_be_kept_are_in_no_set():
    trace, guarantee = trace_of((0.2, 0.1)), Guarantee("disagreement", 0.05)
    for candidate in candidates(trace, guarantee, costs(3), TuneOptions(policy="margin"), [1]):
        assert candidate.exit_indices == (1, 2)


def test_if_nothing_is_saved_a_larger_risk_is_suggested():
    trace = trace_of((0.04,))
    flat = Trace(
        trace.about, np.sign(trace.logits) * 1.0, *(getattr(trace, n) for n in ("spent", "heads", "lengths", "hashes"))
    )
    options, guarantee = TuneOptions(policy="entropy"), Guarantee("disagreement", 0.01)
    assert candidates(flat, guarantee, costs(2), options, [0]) == []
    assert suggest_larger_risk(flat, guarantee, costs(2), options, [0])[0].startswith(
        "With a risk of 5 %: exits on layers 1, 2"
    )


@pytest.mark.parametrize("name", TUNABLE)
def test_a_threshold_grid_decides_like_the_policy(name):
    trace, guarantee = trace_of((0.2, 0.1)), Guarantee("disagreement", 0.05)
    losses = Risk(guarantee, trace).losses_per_exit()
    policies, exits = threshold_grid(name, trace, losses)((0, 1, 2))
    for index in (3, len(policies) // 2, -3):
        replayed = trace.replay(policies[index])
        first = np.where(exits[index].any(1), exits[index].argmax(1) + 1, 3)
        assert (replayed.exit == first).all()
