"""The kinds of answer, one file each."""

from __future__ import annotations

from offramp.answers.answer_type import Problem
from offramp.answers.multi_label import MultiLabel
from offramp.answers.regression import Regression
from offramp.answers.single_label import SingleLabel
from offramp.answers.span import Span
from offramp.registry import Registry

__all__ = ["MULTI_LABEL", "PROBLEMS", "REGRESSION", "SINGLE_LABEL", "SPAN", "Problem"]

SINGLE_LABEL, MULTI_LABEL, REGRESSION, SPAN = SingleLabel(), MultiLabel(), Regression(), Span()

PROBLEMS: Registry[Problem] = Registry("problem type", [SINGLE_LABEL, MULTI_LABEL, REGRESSION, SPAN])
