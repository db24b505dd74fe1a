"""SQuAD's scores of a whole file, in percent, for questions with and without an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offramp.answers.overlap import exact, f1
from offramp.data.questions import Question
from offramp.errors import BadInput

__all__ = ["squad_scores"]


def squad_scores(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """The official scores of predictions by id, for all questions and for those with and without an answer.

    The best scores are the original's, whose predictions all say that an answer is certain: its threshold is 0.
    """
    if not questions:
        raise BadInput("There is no question to score.")
    missing = [question.id for question in questions if question.id not in predictions]
    if missing:
        raise BadInput(f"{len(missing):,} of {len(questions):,} questions have no prediction, as {missing[0]!r:.60}.")
    golds = [() if one.impossible else tuple(gold.text for gold in one.answers) for one in questions]
    texts = [predictions[one.id] for one in questions]
    values = {
        "exact": [exact(text, right) for text, right in zip(texts, golds, strict=True)],
        "f1": [f1(text, right) for text, right in zip(texts, golds, strict=True)],
    }
    answerable = [bool(right) for right in golds]
    scores = _means(values, [True] * len(questions), "")
    scores |= _means(values, answerable, "HasAns_")
    scores |= _means(values, [not one for one in answerable], "NoAns_")
    for name, each in values.items():
        scores |= {f"best_{name}": _best(each, texts, answerable), f"best_{name}_thresh": 0.0}
    return scores


def _means(values: Mapping[str, list[float]], chosen: list[bool], prefix: str) -> dict[str, float]:
    count = sum(chosen)
    if not count:
        return {}
    means = {
        f"{prefix}{name}": 100.0 * sum(value for value, counts in zip(each, chosen, strict=True) if counts) / count
        for name, each in values.items()
    }
    return means | {f"{prefix}total": count}


def _best(values: list[float], texts: list[str], answerable: list[bool]) -> float:
    """The highest score on the way from no answers at all to all of them, question by question."""
    best = now = float(answerable.count(False))
    for value, text, has_answer in zip(values, texts, answerable, strict=True):
        now += value if has_answer else -bool(text)
        best = max(best, now)
    return 100.0 * best / len(values)
