"""What early exits change in every class: of the rows that the full model assigns to it, how many keep it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from offramp.evaluation.intervals import exact_proportion
from offramp.evaluation.results import ClassResult
from offramp.evaluation.traces.trace import Trace

__all__ = ["class_results"]


def class_results(trace: Trace, answers: NDArray[Any], bands: Sequence[float] = ()) -> list[ClassResult]:
    """Return the classes that the full model predicts for some row, with the fraction that keeps its prediction.

    For several labels per text, every label counts twice: where it is predicted, and where it is not ("not …"). For a
    regression, `bands` are the classes; for entities, types, kept where a text loses none of a type.
    """
    labels = trace.about["model"]["labels"]
    full = trace.answer_type.outcomes(trace.expected, labels, bands)
    if full is None:
        return []
    early = trace.answer_type.kept_outcomes(answers, trace.expected, labels, bands)
    assert early is not None
    rows, kept = full.sum(0), (full & early).sum(0)
    names = trace.answer_type.outcome_names(labels, bands)
    return [
        ClassResult(name, int(n), int(k), exact_proportion(int(k), int(n)))
        for name, n, k in zip(names, rows, kept, strict=True)
        if n
    ]
