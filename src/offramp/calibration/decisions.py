"""A decision that users make with predictions: some classes are flagged, or scores beyond a threshold.

| written                                   | flagged are                               |
|-------------------------------------------|-------------------------------------------|
| `keep=("ABUSE",)`                         | texts that are predicted as ABUSE         |
| `flag="P(ABUSE) >= 0.8"`                  | texts whose probability of ABUSE is ≥ 0.8 |
| `flag="score >= 3"`                       | texts whose predicted value is ≥ 3        |
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers import AnswerType
from offramp.errors import BadInput, BadValue, UnknownName

__all__ = ["Decision", "check_flag", "decision_for"]

FLAG = re.compile(r"\s*(score|P\((?P<label>.+)\))\s*(?P<sign>>=|≥|>|<=|≤|<)\s*(?P<number>[-+]?[\d.]+(e[-+]?\d+)?)\s*")
SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "≥": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "≤": operator.le,
    "<": operator.lt,
}

Array = NDArray[Any]


@dataclass(frozen=True)
class Decision:
    """Which predictions are flagged: those with one of these outcomes, or with such a score."""

    name: str  # for sentences, such as "ABUSE" or "P(ABUSE) >= 0.8"
    answer_type: AnswerType
    labels: tuple[str, ...]
    bands: tuple[float, ...] = ()
    outcomes: tuple[int, ...] = ()
    column: int | None = None  # of the score; None: outcomes count
    sign: str = ">="
    threshold: float = 0.0

    def flagged(self, answers: Array, logits: Array | None) -> NDArray[np.bool_]:
        """Return which rows are flagged; `logits` may be None unless scores count."""
        if self.column is None:
            outcomes = self.answer_type.outcomes(answers, self.labels, self.bands)
            assert outcomes is not None, "checked by decision_for"
            return np.asarray(outcomes[:, list(self.outcomes)].any(1))
        if not self.answer_type.has_probabilities:
            return np.asarray(SIGNS[self.sign](answers if logits is None else logits[:, 0], self.threshold))
        if logits is None:
            raise BadInput(
                "The reference has no scores to compare with the threshold of `flag=`; use `keep=`, or a model as "
                "`reference=`. If a trace was recorded before, record it again."
            )
        return np.asarray(SIGNS[self.sign](self.answer_type.scores(logits)[:, self.column], self.threshold))


def check_flag(flag: str) -> re.Match[str]:
    """Return the parts of a flag; raise if it is not valid."""
    match = FLAG.fullmatch(flag)
    if match is None:
        raise BadValue(f"`flag` must be like 'score >= 3' or 'P(LABEL) >= 0.8', got {flag!r:.60}.")
    try:
        float(match["number"])
    except ValueError:
        raise BadValue(f"`flag`: {match['number']!r} is not a number.") from None
    return match


def decision_for(
    keep: Sequence[str], flag: str | None, bands: Sequence[float], answer_type: AnswerType, labels: Sequence[str]
) -> Decision | None:
    """Return the decision for a model; None if there is none. Raise if the model has no such class or score."""
    common = (answer_type, tuple(labels), tuple(bands))
    if keep:
        names = answer_type.outcome_names(labels, bands)
        if not names:
            raise BadValue(f"`keep=` needs classes, and {answer_type.title} has none; use `flag=`, or `bands=`.")
        if missing := [name for name in keep if name not in names]:
            raise UnknownName("class", missing[0], names)
        if ambiguous := [name for name in keep if names.count(name) > 1]:
            raise BadValue(f"`keep`: {ambiguous[0]!r} is the name of a label and of the absence of another; rename it.")
        return Decision(" or ".join(keep), *common, tuple(names.index(name) for name in keep))
    if flag is None:
        return None
    match = check_flag(flag)
    column = 0
    if (match["label"] is None) is answer_type.has_probabilities:
        example = f"P({labels[0]}) >= 0.8" if answer_type.has_probabilities else "score >= 3"
        raise BadValue(f"`flag` must be like {example!r} for {answer_type.title}, got {flag!r:.60}.")
    answer_type.scores(np.zeros((1, len(labels)), np.float32))  # raises if there are none
    if match["label"] is not None:
        if match["label"] not in labels:
            raise UnknownName("label", match["label"], labels)
        column = list(labels).index(match["label"])
    return Decision(flag.strip(), *common, column=column, sign=match["sign"], threshold=float(match["number"]))
