"""The kinds of answer, one file each."""

from __future__ import annotations

from offramp.answers.answer_type import AnswerType
from offramp.answers.multi_label import MultiLabel
from offramp.answers.regression import Regression
from offramp.answers.single_label import SingleLabel
from offramp.answers.span import Span
from offramp.registry import Registry

__all__ = ["ANSWER_TYPES", "MULTI_LABEL", "REGRESSION", "SINGLE_LABEL", "SPAN", "AnswerType"]

SINGLE_LABEL, MULTI_LABEL, REGRESSION, SPAN = SingleLabel(), MultiLabel(), Regression(), Span()

ANSWER_TYPES: Registry[AnswerType] = Registry("problem type", [SINGLE_LABEL, MULTI_LABEL, REGRESSION, SPAN])
