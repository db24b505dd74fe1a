"""The sequential tests of the audit, on thousands of simulated streams with and without violations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from offramp.serving.audit import RUN_LENGTH, Audit, confidence_interval, drift_threshold, log_evidence

RISK, LEVEL, RUNS = 0.02, 0.05, 2000


def streams(rate: float, rows: int, runs: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((runs, rows)) < rate


def thresholds(rows: int) -> np.ndarray:
    """For each number of audited rows, the smallest number of different ones that is a violation."""
    minimum, counts = 1, []
    for audited in range(1, rows + 1):
        while minimum <= audited and log_evidence(audited, minimum, RISK) < math.log(1 / LEVEL):
            minimum += 1
        counts.append(minimum)
    return np.array(counts)


def violation_alarm(different: np.ndarray, rows: int) -> np.ndarray:
    """The audited row at which the violation test raises an alarm; `rows` if it never does."""
    alarms = np.cumsum(different, 1) >= thresholds(rows)[None]
    return np.where(alarms.any(1), alarms.argmax(1) + 1, rows)


def audited(rows, audit=None) -> list[Audit]:
    """The audit after each row of a stream."""
    states, audit = [], audit or Audit(RISK, LEVEL)
    for differs in rows:
        audit = audit.after(bool(differs))
        states.append(audit)
    return states


def first_alarm(states, name: str) -> int | None:
    """The number of audited rows at which a test raised its alarm."""
    return next((row for row, state in enumerate(states, 1) if getattr(state, name)), None)


def run_lengths(rate: float, threshold: float, runs: int, seed: int, limit: int) -> np.ndarray:
    """The audited row at which a CUSUM of 2α against α reaches the threshold, without the code under test."""
    generator = np.random.default_rng(seed)
    value, lengths = np.zeros(runs), np.full(runs, limit)
    up, down = math.log(2), math.log((1 - 2 * RISK) / (1 - RISK))
    for row in range(1, limit + 1):
        value = np.maximum(value, 0) + np.where(generator.random(runs) < rate, up, down)
        lengths = np.where((value >= math.log(threshold)) & (lengths == limit), row, lengths)
        if (lengths < limit).all():
            break
    return lengths


def test_a_guarantee_that_just_holds_rarely_raises_a_violation_alarm():
    rows = 3000
    share = (violation_alarm(streams(RISK, rows, RUNS, 0), rows) < rows).mean()
    assert share <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / RUNS)


def test_twice_the_rate_is_detected_soon():
    rows = 3000
    median = float(np.median(violation_alarm(streams(2 * RISK, rows, RUNS, 1), rows)))
    assert 0.5 * 7.8 / RISK < median < 1.5 * 7.8 / RISK


# -- the tests row by row ------------------------------------------------------------------------


def test_the_violation_alarm_comes_at_the_row_where_the_evidence_reaches_its_level():
    """The evidence is integrated numerically: the likelihood of all rates above α, weighted, against that of α."""
    b = 1 / (2 * RISK) - 1

    def evidence(audited: int, different: int) -> float:
        def weighted(rate):
            likelihood = different * math.log(rate / RISK) + (audited - different) * math.log((1 - rate) / (1 - RISK))
            return math.exp(likelihood) * stats.beta.pdf(rate, 1, b)

        return integrate.quad(weighted, RISK, 1, limit=200)[0] / stats.beta.sf(RISK, 1, b)

    for level in (0.2, 0.05, 0.001):
        rows = np.tile([0, 0, 0, 0, 0, 0, 0, 0, 1, 0], 20)
        alarm = first_alarm(audited(rows, Audit(RISK, level)), "violated")
        expected = next(row for row in range(1, 201) if rows[row - 1] and evidence(row, rows[:row].sum()) >= 1 / level)
        assert alarm == expected
    alarms = [first_alarm(audited(np.ones(30), Audit(RISK, level)), "violated") for level in (0.2, 0.05, 0.001)]
    assert alarms == sorted(set(alarms))  # a smaller level needs more evidence


def test_alarms_stay_when_the_rate_falls_again():
    states = audited([*np.ones(20), *np.zeros(3000)])
    assert states[19].violated and states[19].drifted and states[19].alarm
    assert all(state.violated and state.drifted for state in states[19:])
    assert states[-1].rate < RISK
    assert not states[0].alarm  # one row is not enough for any test


def test_the_drift_alarm_comes_at_the_row_where_the_statistic_reaches_the_threshold():
    threshold = drift_threshold(RISK)
    falls = math.log((1 - 2 * RISK) / (1 - RISK))
    needed = math.ceil(math.log(threshold) / math.log(2))
    assert first_alarm(audited(np.ones(30)), "drifted") == needed
    assert first_alarm(audited([*np.zeros(500), *np.ones(30)]), "drifted") == 500 + needed  # reset to 1, not below
    gap = next(gap for gap in range(1, 99) if (needed - 1) * (math.log(2) + gap * falls) < math.log(threshold) / 2)
    rows = [value for _ in range(needed) for value in (1, *[0] * gap)]
    assert first_alarm(audited(rows), "drifted") is None


def test_row_by_row_is_the_same_as_counting():
    different = streams(3 * RISK, 400, 1, 5)[0]
    states, limits = audited(different), thresholds(400)
    for row, state in enumerate(states, 1):
        assert (state.audited, state.different) == (row, different[:row].sum())
        reached = np.cumsum(different[:row]) >= limits[:row]
        assert state.violated == bool((reached & different[:row]).any())


# -- the drift test's run length -------------------------------------------------------------------


def test_the_documented_run_length_of_the_drift_test_is_the_true_one():
    runs = 500
    lengths = run_lengths(RISK, drift_threshold(RISK), runs, 2, 100_000)
    assert abs(lengths.mean() - RUN_LENGTH) < 4 * lengths.std() / math.sqrt(runs)
    assert run_lengths(RISK, drift_threshold(RISK) / 2, runs, 3, 100_000).mean() < 0.7 * RUN_LENGTH


@pytest.mark.parametrize(("risk", "run_length"), [(0.2, 2000.0), (0.005, 10_000.0), (0.001, 10_000.0)])
def test_the_run_length_of_other_risks(risk, run_length):
    generator, threshold, lengths = np.random.default_rng(4), drift_threshold(risk, run_length), []
    up, down = math.log(2), math.log((1 - 2 * risk) / (1 - risk))
    for _ in range(300):  # from one different row to the next
        value, rows = 0.0, 0
        while value < math.log(threshold) or not rows:
            wait = int(generator.geometric(risk))
            value, rows = max(0.0, value + (wait - 1) * down) + up, rows + wait
        lengths.append(rows)
    assert abs(np.mean(lengths) - run_length) < 4 * np.std(lengths) / math.sqrt(300) + 0.03 * run_length


def test_twice_the_risk_is_a_drift_within_hundreds_of_rows():
    assert np.median(run_lengths(2 * RISK, drift_threshold(RISK), 500, 5, 5000)) < 400


# -- limits per class ------------------------------------------------------------------------------


def test_a_class_raises_its_own_alarm_and_only_counts_its_rows():
    audit = Audit.of(0.02, [("NORMAL", 0.1), ("ABUSE", 0.1)])
    assert [limit.level for limit in audit.limits] == [0.025, 0.025]
    for row in range(2000):  # 1 % of the rows are ABUSE, and all of these are lost
        audit = audit.after(row % 100 == 0, [None, True] if row % 100 == 0 else [False, None])
    normal, abuse = audit.limits
    assert (normal.audited, normal.different, normal.violated) == (1980, 0, False)
    assert (abuse.audited, abuse.different, abuse.violated) == (20, 20, True)
    assert audit.alarm and not audit.violated and not audit.drifted and audit.violated_limits == (abuse,)


def test_all_classes_together_rarely_raise_a_false_alarm():
    """Ten classes whose rates are exactly at their limits."""
    runs, rows, classes = 400, 300, 10
    (level,) = {limit.level for limit in Audit.of(RISK, [(str(number), 0.1) for number in range(classes)]).limits}
    minimum, different = np.empty(rows, int), 1
    for row in range(1, rows + 1):
        while log_evidence(row, different, 0.1) < math.log(1 / level):
            different += 1
        minimum[row - 1] = different
    counts = np.cumsum(np.random.default_rng(6).random((runs, classes, rows)) < 0.1, 2)
    share = (counts >= minimum).any((1, 2)).mean()
    assert share <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / runs)


def test_the_interval_holds_at_all_times():
    different = streams(RISK, 1500, 300, 6)
    counts = np.cumsum(different, 1)
    misses = 0
    for run in range(300):
        intervals = (confidence_interval(row, int(counts[run, row - 1])) for row in range(50, 1501, 50))
        misses += any(not low <= RISK <= high for low, high in intervals)
    assert misses / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
    assert confidence_interval(0, 0) == (0.0, 1.0)
    assert confidence_interval(10, 0)[0] == 0 and confidence_interval(10, 10)[1] == 1


@pytest.mark.parametrize("risk", [0.001, 0.01, 0.05, 0.2])
def test_evidence_is_finite_and_grows_with_errors(risk):
    evidence = [log_evidence(1000, different, risk) for different in range(0, 1001, 50)]
    assert not np.isnan(evidence).any() and evidence[0] < 0 and evidence[-1] > 100
    assert all(after > before for before, after in itertools.pairwise(evidence) if after > 0)
