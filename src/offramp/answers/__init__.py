"""The answer types, one module each; a new one is a module here and an entry in `ANSWER_TYPES`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offramp.answers.answer_type import AnswerType
from offramp.answers.multi_label import MultiLabel
from offramp.answers.ranking import Ranking
from offramp.answers.regression import Regression
from offramp.answers.single_label import SingleLabel
from offramp.answers.span import Span
from offramp.answers.token import TokenClassification
from offramp.registry import Registry

__all__ = [
    "ANSWER_TYPES",
    "MULTI_LABEL",
    "RANKING",
    "REGRESSION",
    "SINGLE_LABEL",
    "SPAN",
    "TOKEN",
    "AnswerType",
    "answer_type_of_architectures",
    "answer_type_of_inputs",
    "default_answer_type",
]

SINGLE_LABEL, MULTI_LABEL, REGRESSION, SPAN = SingleLabel(), MultiLabel(), Regression(), Span()
RANKING, TOKEN = Ranking(), TokenClassification()

ANSWER_TYPES: Registry[AnswerType] = Registry(
    "problem type", [SINGLE_LABEL, MULTI_LABEL, REGRESSION, SPAN, RANKING, TOKEN]
)


def default_answer_type(num_labels: int) -> AnswerType:
    """Return the answer type of a model without `problem_type`: regression for a single output."""
    return REGRESSION if num_labels == 1 else SINGLE_LABEL


def answer_type_of_architectures(architectures: Iterable[str]) -> AnswerType | None:
    """Return the answer type of a checkpoint's class; None for sequence classification and other classes."""
    for name in architectures:
        for answer_type in ANSWER_TYPES.values():
            suffix = answer_type.architecture
            if suffix != AnswerType.architecture and name.endswith(suffix):
                return answer_type
    return None


def answer_type_of_inputs(inputs: Sequence[str] | None) -> AnswerType | None:
    """Return the answer type whose examples always have these columns; None if there is none."""
    matching = (answer_type for answer_type in ANSWER_TYPES.values() if answer_type.inputs is not None)
    return next((answer_type for answer_type in matching if answer_type.inputs == tuple(inputs or ())), None)
