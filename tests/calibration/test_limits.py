"""Limits per class and for a decision: what counts, when a class is tested, and the sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from offramp.answers import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from offramp.calibration.changes import constant_prediction, limit_rows
from offramp.calibration.choice import CalibrationOptions, choose
from offramp.calibration.decisions import decision_for
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.sequence import run_sequence
from offramp.calibration.wording import describe_guarantee
from offramp.errors import BadInput, BadValue, UnknownName
from offramp.evaluation.classes import class_results
from offramp.evaluation.traces.trace import Trace
from offramp.policies import parse
from offramp.policies.grids import fine_grid, grid
from tests.simulated_traces import population, trace_of


def classes_trace(full: list[int], early: list[int], num_classes: int) -> Trace:
    """Two exits: the first predicts `early` with certainty, the last `full`."""
    logits = np.zeros((len(full), 2, num_classes))
    for exit_index, answers in enumerate((early, full)):
        logits[np.arange(len(full)), exit_index, answers] = 9.0
    return trace_of(logits)


ALL_EXIT = parse("entropy:1")


def test_a_class_counts_the_rows_that_the_full_model_assigns_to_it():
    full = [0] * 60 + [1] * 30 + [2] * 25
    early = [0] * 58 + [1] * 2 + [1] * 30 + [0] * 5 + [2] * 20
    risk = Risk(Guarantee(risk=0.2, class_risk=0.1), classes_trace(full, early, 3))
    rows = limit_rows(risk, risk.trace.replay(ALL_EXIT))
    assert [(row["name"], row["rows"], row["changed"], row["tested"]) for row in rows] == [
        ("class 0", 60, 2, True),
        ("class 1", 30, 0, True),
        ("class 2", 25, 5, True),
    ]
    p_values = risk.p_values(risk.trace.replay(ALL_EXIT))
    expected = [stats.binom.cdf(7, 115, 0.2), *(stats.binom.cdf(k, n, 0.1) for k, n in ((2, 60), (0, 30), (5, 25)))]
    assert p_values == pytest.approx(expected)
    (failed,) = run_sequence(risk, [ALL_EXIT])
    assert not failed.passed and failed.failed == "class 2" and failed.p_value == pytest.approx(max(expected))


def test_22_rows_without_an_error_test_a_class_at_10_percent():
    assert Guarantee(class_risk=0.1).limit_rows_needed(0.1) == 22
    for count, tested in ((21, False), (22, True)):
        risk = Risk(Guarantee(class_risk=0.1), classes_trace([0] * 200 + [1] * count, [0] * 200 + [1] * count, 2))
        *_, rare = risk.limits.limits
        assert rare.name == "class 1" and rare.is_tested is tested


def test_rare_classes_are_tested_together_and_if_too_few_still_respected():
    full = [0] * 200 + [1] * 9 + [2] * 8 + [3] * 7
    risk = Risk(Guarantee(risk=0.2, class_risk=0.1), classes_trace(full, full, 5))
    assert [(limit.name, limit.is_tested) for limit in risk.limits.limits] == [
        ("class 0", True),
        ("4 rare classes together", True),  # one of them has no rows: the pool must not depend on that
    ]
    few = [0] * 200 + [1] * 9 + [2] * 3
    for changed, passed in ((1, True), (2, False)):
        early = [*few[:200], *[0] * changed, *few[200 + changed :]]
        risk = Risk(Guarantee(risk=0.2, class_risk=0.1), classes_trace(few, early, 3))
        assert not risk.limits.limits[-1].is_tested
        assert run_sequence(risk, [ALL_EXIT])[0].passed is passed
    replayed = Risk(Guarantee(risk=0.2, class_risk=0.1), classes_trace(few, few, 3))
    sentence = describe_guarantee(replayed, limit_rows(replayed, replayed.trace.replay(ALL_EXIT)), "of a test")
    assert "at most 10 % of the predictions of class 0 change" in sentence
    assert "Not covered: class 1 and class 2 (too few rows; 10 more of them together are needed)." in sentence
    risk = Risk(Guarantee(class_risk=0.1), classes_trace([0] * 50, [0] * 50, 3))
    sentence = describe_guarantee(risk, limit_rows(risk, risk.trace.replay(ALL_EXIT)), "of a test")
    assert "Not covered: class 1 and class 2 (never predicted for these rows)." in sentence


def test_the_sentence_names_what_is_covered():
    full = [0] * 60 + [1] * 30
    for options, part in (
        ({"class_risk": 0.1}, "at most 2 % of predictions differ from the full model's (all classes together), and"),
        ({"class_risk": 0.1}, "at most 10 % of the predictions of every class change, on texts like those tested: 90"),
        ({}, "from the full model's, on texts like those tested: 90 rows of a test. There is no limit per class."),
        ({"keep": ("class 1",), "recall": 0.9}, "90 % of the texts that the full model flags (class 1) stay flagged"),
        ({"keep": ("class 1",), "precision": 0.9}, "flagged (class 1) after early exits are flagged by the full model"),
        ({"average": True}, "On average over calibrations, at most 2 % of predictions differ"),
        ({"count": "texts"}, "90 unique texts of a test"),
    ):
        risk = Risk(Guarantee(**options), classes_trace(full, full, 2))
        assert part in describe_guarantee(risk, limit_rows(risk, risk.trace.replay(ALL_EXIT)), "of a test")


def test_recall_and_precision_count_flagged_rows():
    full, early = [0] * 100 + [1] * 50, [0] * 96 + [1] * 4 + [1] * 47 + [0] * 3
    guarantee = Guarantee(risk=0.2, keep=("class 1",), recall=0.9, precision=0.9)
    risk = Risk(guarantee, classes_trace(full, early, 2))
    rows = limit_rows(risk, risk.trace.replay(ALL_EXIT))
    assert [(row["kind"], row["rows"], row["changed"]) for row in rows] == [("recall", 50, 3), ("precision", 51, 4)]
    choice = choose(
        classes_trace([0] * 200 + [1] * 5, [0] * 205, 2), guarantee, CalibrationOptions(("entropy",)), "of a test"
    )
    assert choice.policy is None
    assert "Too few flagged rows (5) to guarantee recall of class 1, 90 %, with 90 %" in choice.evidence["sentence"]


def test_scores_beyond_a_threshold_are_a_decision():
    logits = np.array([[0.0, 3.0], [0.0, 1.0], [2.0, 0.0]])
    decision = decision_for((), "P(b) >= 0.8", (), SINGLE_LABEL, ["a", "b"])
    assert decision.flagged(logits.argmax(1), logits).tolist() == [True, False, False]
    assert decision_for((), "P(b) < 0.8", (), SINGLE_LABEL, ["a", "b"]).flagged(None, logits).tolist() == [0, 1, 1]
    assert decision_for((), "P(b)>0.7", (), MULTI_LABEL, ["a", "b"]).flagged(None, logits).tolist() == [1, 1, 0]
    values = np.array([[2.9], [3.0]])
    assert decision_for((), "score ≥ 3", (), REGRESSION, ["x"]).flagged(None, values).tolist() == [False, True]
    assert decision_for(("3 and above",), None, (3.0,), REGRESSION, ["x"]).flagged(values[:, 0], None).tolist() == [
        0,
        1,
    ]
    assert decision_for((), None, (), SINGLE_LABEL, ["a"]) is None
    with pytest.raises(BadInput, match="no scores"):
        decision.flagged(np.array([1]), None)
    with pytest.raises(UnknownName, match="Unknown label 'c'"):
        decision_for((), "P(c) >= 0.8", (), SINGLE_LABEL, ["a", "b"])
    with pytest.raises(BadValue, match="not a number"):
        Guarantee(flag="P(a) > 1.2.3", recall=0.9)


def test_outcomes_of_every_answer_type():
    labels = SINGLE_LABEL.outcomes(np.array([1, 0]), ("a", "b", "c"), ())
    assert labels.tolist() == [[False, True, False], [True, False, False]]
    several = MULTI_LABEL.outcomes(np.array([[1, 0]]), ("a", "b"), ())
    assert several.tolist() == [[True, False, False, True]]
    assert MULTI_LABEL.outcome_names(["a", "b"], ()) == ["a", "b", "not a", "not b"]
    bands = REGRESSION.outcomes(np.array([0.5, 1.0, 2.9, 3.0]), ("value",), (1.0, 3.0))
    assert bands.argmax(1).tolist() == [0, 1, 1, 2]
    assert REGRESSION.outcome_names(["x"], (1.0, 3.0)) == ["below 1", "1 to 3", "3 and above"]
    assert REGRESSION.outcomes(np.array([1.0]), ("value",), ()) is None


def test_a_constant_prediction_is_noticed():
    assert constant_prediction(Risk(Guarantee(risk=0.02), classes_trace([0] * 99 + [1], [0] * 100, 2))) == "class 0"
    assert constant_prediction(Risk(Guarantee(risk=0.02), classes_trace([0] * 97 + [1] * 3, [0] * 100, 2))) is None


def test_the_table_per_class_has_exact_intervals():
    results = class_results(classes_trace([0] * 8 + [1] * 2, [0] * 9 + [1], 3), np.array([0] * 9 + [1]))
    assert [(entry.name, entry.rows, entry.kept) for entry in results] == [("class 0", 8, 8), ("class 1", 2, 1)]
    assert results[0].interval == pytest.approx((0.6306, 1.0), abs=1e-4)


def test_a_fine_grid_contains_the_grid_in_the_same_order():
    spec = population(0.4, 200, seed=0).model_spec
    coarse, fine = ([policy.threshold for policy in make("entropy", spec)] for make in (grid, fine_grid))
    assert set(coarse) <= set(fine) and fine == sorted(fine) and len(fine) > 2 * len(coarse)
    assert fine_grid("patience", spec) == grid("patience", spec) and fine_grid("vote", spec) == grid("vote", spec)
    falling = [policy.threshold for policy in fine_grid("confidence", spec)]
    assert falling == sorted(falling, reverse=True)


def test_guarantees_are_saved_as_json():
    whole = population(0.1, 4000, seed=0)
    choice = choose(whole, Guarantee(class_risk=0.1), CalibrationOptions(("entropy",)), "of a test")
    saved = json.loads(json.dumps(choice.evidence, default=str))
    assert {"limits", "classes", "constant", "tested"} <= saved.keys() and saved["guarantee"]["class_risk"] == 0.1
