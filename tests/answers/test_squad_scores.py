"""SQuAD's exact match and F1, against values worked out by hand from the official definition."""

from __future__ import annotations

import pytest

from offramp.answers.overlap import exact_match, token_f1, normalize_answer
from offramp.answers.span_scores import squad_scores
from offramp.data.questions import Gold, Question
from offramp.errors import BadInput


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("  an   apple\ta\nday ", "apple day"),
        ("theatre, Anna and a-ha", "theatre anna and aha"),  # articles only as whole words, marks before articles
        ("the-end", "theend"),
        ("U.S.", "us"),
        ("$2,000 (about)", "2000 about"),
        ("“Osk” – 5€", "“osk” – 5€"),  # only ASCII marks go
        ("A. The, an!", ""),
        ("É", "é"),
        ("", ""),
    ],
)
def test_normalised(text, wanted):
    assert normalize_answer(text) == wanted


@pytest.mark.parametrize(
    ("text", "golds", "is_exact", "overlap"),
    [
        ("The Tower of London", ["tower of london."], 1, 1),
        ("tower", ["Tower of London"], 0, 1 / 2),  # precision 1, recall 1/3
        ("old tower in York", ["tower of London"], 0, 2 / 7),  # 1 of 4, 1 of 3
        ("1803 and 1811", ["between 1803 and 1811", "1803 and 1811"], 1, 1),  # best of several
        ("in 1803", ["between 1803 and 1811", "1803 to 1811"], 0, 2 / 5),  # second: 1 of 2, 1 of 3
        ("york york york", ["York York city"], 0, 2 / 3),  # a word counts as often as both have it: 2 of 3, 2 of 3
        ("york", ["york york"], 0, 2 / 3),  # 1 of 1, 1 of 2
        ("London of tower", ["tower of london"], 0, 1),  # F1 knows no order
        ("cat", ["dog"], 0, 0),
        ("", ["dog"], 0, 0),
        ("the", ["dog"], 0, 0),  # says nothing, as the empty text
        ("", [], 1, 1),
        ("The.", [], 1, 1),
        ("cat", [], 0, 0),
        ("", ["a", "The!"], 1, 1),  # right answers that say nothing are none
        ("", ["the", "dog"], 0, 0),  # beside one that says something they do not count
        ("dog", ["the", "dog"], 1, 1),
    ],
)
def test_exact_and_f1(text, golds, is_exact, overlap):
    assert exact_match(text, golds) == is_exact
    assert token_f1(text, golds) == pytest.approx(overlap, abs=1e-12)


def asked(name, *golds, impossible=False):
    return Question(name, "Who?", "Somebody did.", tuple(Gold(gold, 0) for gold in golds), impossible)


def test_scores_of_questions_with_and_without_answers():
    questions = [asked("a", "the cat", "cat"), asked("b"), asked("c", "old dog"), asked("d"), asked("e", "fox")]
    scores = squad_scores(questions, {"a": "Cat.", "b": "dog", "c": "dog", "d": "", "e": "cow"})
    assert scores == pytest.approx(
        {
            "exact": 100 * 2 / 5,  # a, d
            "f1": 100 * (1 + 0 + 2 / 3 + 1 + 0) / 5,
            "total": 5,
            "HasAns_exact": 100 / 3,
            "HasAns_f1": 100 * (1 + 2 / 3) / 3,
            "HasAns_total": 3,
            "NoAns_exact": 50.0,
            "NoAns_f1": 50.0,
            "NoAns_total": 2,
            "best_exact": 100 * 3 / 5,  # from 2 on: 3, 2, 2, 2, 2
            "best_exact_thresh": 0.0,
            "best_f1": 100 * 3 / 5,  # 3, 2, 2⅔, 2⅔, 2⅔
            "best_f1_thresh": 0.0,
        }
    )


def test_the_best_scores_follow_the_files_order_and_may_be_those_of_no_answer():
    questions = [asked("a"), asked("b", "cat"), asked("c")]
    scores = squad_scores(questions, {"c": "", "b": "dog", "a": "cow"})
    assert (scores["exact"], scores["best_exact"]) == pytest.approx((100 / 3, 200 / 3))


def test_variants_are_given_only_where_there_are_such_questions():
    assert not [name for name in squad_scores([asked("a", "cat")], {"a": "cat"}) if name.startswith("NoAns")]
    assert not [name for name in squad_scores([asked("a")], {"a": "cat"}) if name.startswith("HasAns")]


def test_an_impossible_question_has_no_right_answer_whatever_its_file_lists():
    scores = squad_scores([asked("a", "cat", impossible=True)], {"a": "cat"})
    assert scores["NoAns_exact"] == scores["exact"] == 0


def test_an_answer_that_says_nothing_still_makes_a_question_answerable():
    scores = squad_scores([asked("a", "The")], {"a": ""})
    assert scores["HasAns_total"] == 1
    assert scores["exact"] == 100


def test_what_cannot_be_scored_is_said():
    with pytest.raises(BadInput, match="1 of 2 questions have no prediction, as 'b'"):
        squad_scores([asked("a"), asked("b")], {"a": ""})
    with pytest.raises(BadInput, match="no question"):
        squad_scores([], {})
