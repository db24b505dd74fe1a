"""The kinds of answer, one file each; a new one is a file and its line in the table."""

from __future__ import annotations

from collections.abc import Iterable

from offramp.answers.answer_type import AnswerType
from offramp.answers.multi_label import MultiLabel
from offramp.answers.regression import Regression
from offramp.answers.single_label import SingleLabel
from offramp.answers.span import Span
from offramp.registry import Registry

__all__ = [
    "ANSWER_TYPES",
    "MULTI_LABEL",
    "REGRESSION",
    "SINGLE_LABEL",
    "SPAN",
    "AnswerType",
    "type_of_architectures",
    "usual_type",
]

SINGLE_LABEL, MULTI_LABEL, REGRESSION, SPAN = SingleLabel(), MultiLabel(), Regression(), Span()

ANSWER_TYPES: Registry[AnswerType] = Registry("problem type", [SINGLE_LABEL, MULTI_LABEL, REGRESSION, SPAN])


def usual_type(labels: int) -> AnswerType:
    """What a model with so many outputs answers with, where nobody says it: one alone is a value."""
    return REGRESSION if labels == 1 else SINGLE_LABEL


def type_of_architectures(architectures: Iterable[str]) -> AnswerType | None:
    """The answer type whose head a checkpoint's class has, where it is not an ordinary classifier's."""
    for name in architectures:
        for one in ANSWER_TYPES.values():
            if one.architecture != AnswerType.architecture and name.endswith(one.architecture):
                return one
    return None
