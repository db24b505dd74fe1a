"""The kinds of answer, one file each."""

from __future__ import annotations

from offramp.problems.multi_label import MultiLabel
from offramp.problems.problem import Problem
from offramp.problems.regression import Regression
from offramp.problems.single_label import SingleLabel
from offramp.problems.span import Span
from offramp.registry import Registry

__all__ = ["MULTI_LABEL", "PROBLEMS", "REGRESSION", "SINGLE_LABEL", "SPAN", "Problem"]

SINGLE_LABEL, MULTI_LABEL, REGRESSION, SPAN = SingleLabel(), MultiLabel(), Regression(), Span()

PROBLEMS: Registry[Problem] = Registry("problem type", [SINGLE_LABEL, MULTI_LABEL, REGRESSION, SPAN])
