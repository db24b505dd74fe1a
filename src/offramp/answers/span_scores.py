"""SQuAD's official scores of a file, in percent, for questions with and without an answer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from offramp.answers.overlap import exact_match, token_f1
from offramp.data.questions import Question
from offramp.errors import BadInput

__all__ = ["squad_scores"]


def squad_scores(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """Return the official scores of predictions by id, for all questions and for those with and without an answer.

    The best scores are those of the official script without no-answer probabilities: their threshold is 0.
    """
    if not questions:
        raise BadInput("There are no questions to score.")
    missing = [question.id for question in questions if question.id not in predictions]
    if missing:
        raise BadInput(
            f"{len(missing):,} of {len(questions):,} questions have no prediction, for example {missing[0]!r:.60}."
        )
    golds = [() if question.impossible else tuple(gold.text for gold in question.answers) for question in questions]
    texts = [predictions[question.id] for question in questions]
    values = {
        "exact": [exact_match(text, gold_texts) for text, gold_texts in zip(texts, golds, strict=True)],
        "f1": [token_f1(text, gold_texts) for text, gold_texts in zip(texts, golds, strict=True)],
    }
    answerable = [bool(gold_texts) for gold_texts in golds]
    scores = _means(values, [True] * len(questions), "")
    scores |= _means(values, answerable, "HasAns_")
    scores |= _means(values, [not has_answer for has_answer in answerable], "NoAns_")
    for name, question_scores in values.items():
        scores |= {f"best_{name}": _best(question_scores, texts, answerable), f"best_{name}_thresh": 0.0}
    return scores


def _means(values: Mapping[str, list[float]], selected: list[bool], prefix: str) -> dict[str, float]:
    count = sum(selected)
    if not count:
        return {}
    means = {
        f"{prefix}{name}": 100.0 * sum(itertools.compress(question_scores, selected)) / count
        for name, question_scores in values.items()
    }
    return means | {f"{prefix}total": count}


def _best(scores: list[float], texts: list[str], answerable: list[bool]) -> float:
    """Return the best score if the first n questions are answered and the others are not, over all n."""
    best = total = float(answerable.count(False))
    for score, text, has_answer in zip(scores, texts, answerable, strict=True):
        total += score if has_answer else -bool(text)
        best = max(best, total)
    return 100.0 * best / len(scores)
