"""The guarantee itself: p-values, the order of testing, and thousands of simulated calibrations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from offramp.calibration.bounds import BOUNDS, binomial, hoeffding_bentkus, rows_needed
from offramp.calibration.risks import Guarantee
from offramp.calibration.sequence import fixed_sequence
from offramp.errors import BadValue, UnknownName

TRIALS = 2500


# -- p-values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("risk", "confidence", "rows"),
    [(0.01, 0.95, 299), (0.01, 0.9, 230), (0.02, 0.9, 114), (0.02, 0.95, 149), (0.05, 0.95, 59), (0.005, 0.95, 598)],
)
def test_rows_needed_without_an_error(risk, confidence, rows):
    guarantee = Guarantee("disagreement", risk, confidence)
    assert rows_needed(guarantee.p_value, guarantee.level) == rows
    assert rows == math.ceil(math.log(1 - confidence) / math.log(1 - risk))


def test_rows_needed_by_the_other_tests():
    assert rows_needed(Guarantee("accuracy", 0.01, 0.95).p_value, 0.05) == pytest.approx(308, abs=3)
    # at no error Hoeffding's bound is the exact tail; Bentkus alone would ask for 398
    assert rows_needed(Guarantee("disagreement", 0.01, 0.95, "hoeffding-bentkus").p_value, 0.05) == 299


@pytest.mark.parametrize(("errors", "rows"), [(1, 473), (2, 628), (3, 773), (5, 1049), (10, 1693)])
def test_errors_that_the_exact_test_allows(errors, rows):
    def p_value(count):
        return binomial(np.arange(count) < errors, 0.01, 0.05)

    assert p_value(rows) <= 0.05 < p_value(rows - 1)


def test_counts_are_not_rounded_up_by_floats():
    """7 errors of 3,000: the mean times the rows is a hair above 7 in floats."""
    losses = np.zeros(3000)
    losses[:7] = 1
    bentkus = math.e * stats.binom.cdf(7, 3000, 0.01)
    assert hoeffding_bentkus(losses, 0.01, 0.05) <= bentkus
    tenths = np.full(30, 0.1)  # sums to 3.0000000000000004 or so
    assert hoeffding_bentkus(tenths, 0.3, 0.05) <= math.e * stats.binom.cdf(3, 30, 0.3)


def test_no_error_is_no_nan():
    for bound in BOUNDS.values():
        p_value = bound(np.zeros(300), 0.01, 0.05)
        assert 0 < p_value <= 0.06, bound


def test_every_error_speaks_for_the_risk():
    for bound in BOUNDS.values():
        assert bound(np.ones(50), 0.05, 0.05) == pytest.approx(1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=300), st.floats(0.005, 0.6))
def test_p_values_are_probabilities_and_fall_with_the_allowed_risk(losses, risk):
    for bound in BOUNDS.values():
        p_value = bound(np.array(losses), risk, 0.1)
        assert 0 <= p_value <= 1
        assert bound(np.array(losses), min(0.99, risk * 1.5), 0.1) <= p_value + 1e-12


def test_betting_takes_signed_losses_and_gains_from_them():
    rng = np.random.default_rng(0)
    flips = rng.choice([-1, 0, 1], p=[0.02, 0.96, 0.02], size=2000)
    signed = Guarantee("accuracy", 0.02, 0.9)
    clipped = Guarantee("accuracy", 0.02, 0.9, "binomial")
    assert signed.p_value(flips) < 0.1 < clipped.p_value(flips)


def test_losses_that_a_test_is_not_for_are_refused():
    with pytest.raises(BadValue, match="0 and 1"):
        binomial(np.array([0, 0.5]), 0.1, 0.1)
    with pytest.raises(BadValue, match="between 0 and 1"):
        hoeffding_bentkus(np.array([-1, 1]), 0.1, 0.1)


@pytest.mark.parametrize("risk", [0, 1, -0.1, 2, float("nan")])
def test_impossible_risks_are_refused(risk):
    with pytest.raises(BadValue, match="between 0 and 1"):
        Guarantee("disagreement", risk)
    with pytest.raises(BadValue, match="between 0 and 1"):
        Guarantee("disagreement", 0.1, risk)


@pytest.mark.parametrize("tolerance", [float("nan"), -1, float("inf")])
def test_impossible_tolerances_are_refused(tolerance):
    with pytest.raises(BadValue, match="finite and at least 0"):
        Guarantee(tolerance=tolerance)


def test_more_rows_than_the_maximum():
    assert rows_needed(Guarantee("disagreement", 1e-8).p_value, 0.05) is None


def test_unknown_names_are_refused():
    with pytest.raises(UnknownName, match="Unknown risk"):
        Guarantee("loss")
    with pytest.raises(UnknownName, match="Unknown test"):
        Guarantee(test="t")


# -- the order of testing ------------------------------------------------------------------------


def first_not_rejected(p_values, level):
    """A defect of published code: the index of the first failure instead of the last success."""
    return next((index for index, p_value in enumerate(p_values) if p_value > level), len(p_values) - 1)


def without_stopping(p_values, level):
    """Another one: the riskiest setting that passes, whatever failed before it."""
    return max((index for index, p_value in enumerate(p_values) if p_value <= level), default=None)


def test_the_last_rejected_before_the_first_failure():
    p_values = [0, 0, 0.5, 0]
    assert fixed_sequence(p_values, 0.1) == 1
    assert first_not_rejected(p_values, 0.1) == 2
    assert without_stopping(p_values, 0.1) == 3


def test_nothing_passes_nothing_is_chosen():
    assert fixed_sequence([0.5, 0.2], 0.1) is None
    assert fixed_sequence([], 0.1) is None
    assert fixed_sequence([float("nan"), 0.0], 0.1) is None


# -- simulations ---------------------------------------------------------------------------------


def cached_p_value(guarantee):
    """The p-value of losses of −1, 0 and 1, cached by their counts unless the test depends on the order."""
    if guarantee.test == "betting":
        return guarantee.p_value
    known = {}

    def p_value(losses):
        counts = np.bincount(losses + 1, minlength=3).tobytes()
        if counts not in known:
            known[counts] = guarantee.p_value(losses)
        return known[counts]

    return p_value


@pytest.mark.parametrize("risk_type", ["disagreement", "accuracy"])
def test_only_betting_depends_on_the_order_of_rows(risk_type):
    rng = np.random.default_rng(0)
    losses = rng.choice(
        [-1, 0, 1], p=[0.01 * (risk_type == "accuracy"), 0.96, 0.04 - 0.01 * (risk_type == "accuracy")], size=500
    )
    for test in BOUNDS:
        guarantee = Guarantee(risk_type, 0.05, 0.9, test)
        p_values = {guarantee.p_value(rng.permutation(losses)) for _ in range(5)}
        assert (len(p_values) > 1) is (test == "betting")


def violations(choose, risks, draw, guarantee, rows, seed=0):
    """How often the true risk of the chosen setting is above the guaranteed one."""
    rng = np.random.default_rng(seed)
    p_value = cached_p_value(guarantee)
    violated = 0
    for _ in range(TRIALS):
        losses = draw(rng, rows)  # (settings, rows)
        index = choose([p_value(row) for row in losses], guarantee.level)
        violated += index is not None and risks[index] > guarantee.risk
    return violated / TRIALS


def nested(risks):
    """A row that errs at one setting errs at all riskier ones, as with one threshold."""
    levels = np.array(risks)

    def draw(rng, rows):
        return (rng.random(rows) < levels[:, None]).astype(np.int64)

    return draw


def independent(risks):
    levels = np.array(risks)

    def draw(rng, rows):
        return (rng.random((len(levels), rows)) < levels[:, None]).astype(np.int64)

    return draw


def signed(risks, flips=0.03):
    """Gains and losses: early error minus the full model's error, with the given mean."""
    levels = np.array(risks)

    def draw(rng, rows):
        chance = rng.random(rows)
        gains = chance < flips
        losses = (chance > 1 - flips - levels[:, None]) & ~gains
        return losses.astype(np.int64) - gains

    return draw


def upper_limit(guarantee):
    """The largest violation rate that is consistent with a true rate of δ."""
    return guarantee.level + 3 * math.sqrt(guarantee.level * (1 - guarantee.level) / TRIALS)


EPSILON = 1e-9
COARSE = [0.0, 0.02, 0.05 + EPSILON, 0.2]  # a jump across the guaranteed risk
UPS_AND_DOWNS = [0.01, 0.03, 0.05 + EPSILON, 0.02, 0.06, 0.01, 0.05 + EPSILON, 0.08, 0.2]


@pytest.mark.parametrize("test", ["binomial", "betting", "hoeffding-bentkus"])
@pytest.mark.parametrize(
    ("risks", "make"),
    [(COARSE, nested), (COARSE, independent), (UPS_AND_DOWNS, nested), (UPS_AND_DOWNS, independent)],
    ids=["monotone", "monotone, independent", "not monotone", "not monotone, independent"],
)
def test_the_guarantee_holds(test, risks, make):
    guarantee = Guarantee("disagreement", 0.05, 0.9, test)
    assert violations(fixed_sequence, risks, make(risks), guarantee, 1000) <= upper_limit(guarantee)


@pytest.mark.parametrize("test", ["betting", "binomial", "hoeffding-bentkus"])
@pytest.mark.parametrize("risks", [COARSE, UPS_AND_DOWNS], ids=["monotone", "not monotone"])
def test_the_guarantee_about_accuracy_holds(test, risks):
    guarantee = Guarantee("accuracy", 0.05, 0.9, test)
    # signed losses whose mean is `risk`: losses of flips + risk, gains of flips
    shifted = [risk + 0.03 for risk in risks]
    assert violations(fixed_sequence, risks, signed(shifted), guarantee, 1000) <= upper_limit(guarantee)


def test_the_simulation_catches_the_off_by_one():
    guarantee = Guarantee("disagreement", 0.05, 0.9)
    assert violations(first_not_rejected, COARSE, nested(COARSE), guarantee, 1000) > 0.5
    assert violations(fixed_sequence, COARSE, nested(COARSE), guarantee, 1000) <= upper_limit(guarantee)


def test_the_simulation_catches_testing_on_after_a_failure():
    guarantee = Guarantee("disagreement", 0.05, 0.9)
    many = [0.0, *([0.05 + EPSILON] * 12)]  # every setting beyond the first is a chance to pass by luck
    assert violations(without_stopping, many, independent(many), guarantee, 1000) > upper_limit(guarantee)
    assert violations(fixed_sequence, many, independent(many), guarantee, 1000) <= upper_limit(guarantee)


def test_the_tests_have_power():
    """Easy guarantees are given: a test that never passes any setting would satisfy the other tests."""
    easy = [0.0, 0.01]
    for test, minimum in (("binomial", 0.99), ("betting", 0.99), ("hoeffding-bentkus", 0.99)):
        guarantee = Guarantee("disagreement", 0.05, 0.9, test)
        rng = np.random.default_rng(1)
        p_value = cached_p_value(guarantee)
        chosen = [fixed_sequence([p_value(row) for row in nested(easy)(rng, 1000)], 0.1) for _ in range(300)]
        assert np.mean([index == 1 for index in chosen]) >= minimum
