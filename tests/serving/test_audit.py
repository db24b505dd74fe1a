"""The sequential tests of the audit, on thousands of simulated streams with and without violations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from offramp.serving.audit import Audit, confidence_interval, log_evidence

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


def drift_alarm(different: np.ndarray, patience: float) -> np.ndarray:
    """The same for the drift test."""
    runs, rows = different.shape
    value, when = np.ones(runs), np.full(runs, rows)
    for row in range(rows):
        value = np.maximum(value, 1) * np.where(different[:, row], 2.0, (1 - 2 * RISK) / (1 - RISK))
        when = np.where((value >= patience) & (when == rows), row + 1, when)
    return when


def test_a_guarantee_that_just_holds_rarely_raises_a_violation_alarm():
    rows = 3000
    share = (violation_alarm(streams(RISK, rows, RUNS, 0), rows) < rows).mean()
    assert share <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / RUNS)


def test_twice_the_rate_is_detected_soon():
    rows = 3000
    median = float(np.median(violation_alarm(streams(2 * RISK, rows, RUNS, 1), rows)))
    assert 0.5 * 7.8 / RISK < median < 1.5 * 7.8 / RISK


def test_drift_is_detected_after_a_long_healthy_time_and_false_alarms_are_rare():
    patience = 5000.0
    healthy = drift_alarm(streams(RISK, 6000, 400, 2), patience)
    # in the first half of that time an exponential with that mean would have alarmed in 39 % of the runs
    assert (healthy <= patience / 2).mean() <= 0.39 + 3 * math.sqrt(0.24 / 400)
    rows = np.concatenate([streams(RISK / 2, 4000, 200, 3), streams(3 * RISK, 2000, 200, 4)], axis=1)
    alarms = drift_alarm(rows, patience)
    delays = alarms[alarms > 4000] - 4000
    assert len(delays) > 190 and np.median(delays) < 500


def test_updating_row_by_row_is_the_same():
    different = streams(3 * RISK, 400, 1, 5)[0]
    audit = Audit(RISK, LEVEL, 100.0)
    for row, differs in enumerate(different, 1):
        audit = audit.after(bool(differs))
        assert audit.violated == (violation_alarm(different[None, :row], row)[0] <= row and bool(audit.violated))
    assert audit.audited == 400 and audit.different == different.sum()
    assert audit.drifted == (drift_alarm(different[None], 100.0)[0] < 400 or audit.drift >= 100)


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
