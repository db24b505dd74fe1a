"""SQuAD's exact match and F1, against values computed by hand from the official definition."""

from __future__ import annotations

import pytest

from offramp.answers.overlap import exact_match, normalize_answer, token_f1
from offramp.answers.span_scores import squad_scores
from offramp.data.questions import Gold, Question
from offramp.errors import BadInput


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("  an   apple\ta\nday ", "apple day"),
        (
            "theatre, Anna and a-ha",
            "theatre anna and aha",
        ),  # only whole words are articles; punctuation is removed first
        ("the-end", "theend"),
        ("U.S.", "us"),
        ("$2,000 (about)", "2000 about"),
        ("“Osk” – 5€", "“osk” – 5€"),  # only ASCII punctuation is removed
        ("A. The, an!", ""),
        ("É", "é"),
        ("", ""),
    ],
)
def test_normalize_answer(text, normalized):
    assert normalize_answer(text) == normalized


@pytest.mark.parametrize(
    ("text", "golds", "is_exact", "overlap"),
    [
        ("The Tower of London", ["tower of london."], 1, 1),
        ("tower", ["Tower of London"], 0, 1 / 2),  # precision 1, recall 1/3
        ("old tower in York", ["tower of London"], 0, 2 / 7),  # 1 of 4, 1 of 3
        ("1803 and 1811", ["between 1803 and 1811", "1803 and 1811"], 1, 1),  # best of several
        ("in 1803", ["between 1803 and 1811", "1803 to 1811"], 0, 2 / 5),  # second: 1 of 2, 1 of 3
        ("york york york", ["York York city"], 0, 2 / 3),  # with repetitions: 2 of 3, 2 of 3
        ("york", ["york york"], 0, 2 / 3),  # 1 of 1, 1 of 2
        ("London of tower", ["tower of london"], 0, 1),  # F1 ignores the order
        ("cat", ["dog"], 0, 0),
        ("", ["dog"], 0, 0),
        ("the", ["dog"], 0, 0),  # only an article, so empty
        ("", [], 1, 1),
        ("The.", [], 1, 1),
        ("cat", [], 0, 0),
        ("", ["a", "The!"], 1, 1),  # gold answers that are only articles do not count
        ("", ["the", "dog"], 0, 0),  # if there is another gold answer
        ("dog", ["the", "dog"], 1, 1),
    ],
)
def test_exact_and_f1(text, golds, is_exact, overlap):
    assert exact_match(text, golds) == is_exact
    assert token_f1(text, golds) == pytest.approx(overlap, abs=1e-12)


def question(name, *golds, impossible=False):
    return Question(name, "Who?", "Somebody did.", tuple(Gold(gold, 0) for gold in golds), impossible)


def test_scores_of_questions_with_and_without_answers():
    questions = [
        question("a", "the cat", "cat"),
        question("b"),
        question("c", "old dog"),
        question("d"),
        question("e", "fox"),
    ]
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


def test_the_best_scores_follow_the_order_of_the_file():
    questions = [question("a"), question("b", "cat"), question("c")]
    scores = squad_scores(questions, {"c": "", "b": "dog", "a": "cow"})
    assert (scores["exact"], scores["best_exact"]) == pytest.approx((100 / 3, 200 / 3))


def test_scores_by_answerability_need_such_questions():
    assert not [name for name in squad_scores([question("a", "cat")], {"a": "cat"}) if name.startswith("NoAns")]
    assert not [name for name in squad_scores([question("a")], {"a": "cat"}) if name.startswith("HasAns")]


def test_an_impossible_question_has_no_gold_answer():
    scores = squad_scores([question("a", "cat", impossible=True)], {"a": "cat"})
    assert scores["NoAns_exact"] == scores["exact"] == 0


def test_a_gold_answer_that_is_only_an_article_makes_a_question_answerable():
    scores = squad_scores([question("a", "The")], {"a": ""})
    assert scores["HasAns_total"] == 1
    assert scores["exact"] == 100


def test_missing_predictions_raise():
    with pytest.raises(BadInput, match="1 of 2 questions have no prediction, for example 'b'"):
        squad_scores([question("a"), question("b")], {"a": ""})
    with pytest.raises(BadInput, match="no questions"):
        squad_scores([], {})
