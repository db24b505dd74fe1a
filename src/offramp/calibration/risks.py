"""What can be guaranteed: every row has a loss from exiting early, and the risk is the mean loss.

| risk           | loss of a row                                      | labels | test                            |
|----------------|----------------------------------------------------|--------|---------------------------------|
| `disagreement` | prediction differs from the full model's: 0 or 1   | no     | exact binomial                  |
| `changed`      | rankings: the top documents are another set: 0 or 1 | no    | exact binomial                  |
| `lost`         | entities of the full model that are lost: 0 to 1, over texts with entities | no | betting |
| `accuracy`     | early error minus full model's error: −1, 0 or 1   | yes    | betting; clipped at 0: binomial |

For regression, predictions differ or are wrong beyond a tolerance. For multi-label, the error is the fraction of wrong
labels. If rows come in groups (documents, customers), the loss is the mean loss of a group, and groups are tested.

Besides the overall risk, a guarantee limits the changes of every class and of a decision (`limits.py`). A setting
passes if all tests pass at the level δ. This is an intersection-union test: δ is not divided among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from offramp.answers import AnswerType
from offramp.calibration.bounds import BOUNDS, betting, binomial, rows_needed
from offramp.calibration.decisions import Decision, check_flag, decision_for
from offramp.calibration.limits import CLASS, Limits, OutcomeChange, limits_of
from offramp.errors import BadInput, BadValue, UnknownName
from offramp.evaluation.traces.trace import Replayed, Trace

__all__ = ["COUNTS", "DEFAULT_CLASS_RISK", "RISKS", "SEED", "Guarantee", "Risk"]

RISKS = {
    "disagreement": "predictions that differ from the full model's; rankings: missing top documents",
    "changed": "rankings: queries with another set of top documents",
    "lost": "token classification: entities of the full model that are lost",
    "accuracy": "accuracy lost compared with the full model",
}
DEFAULT_TEST = {"disagreement": "binomial", "changed": "binomial", "lost": "betting", "accuracy": "betting"}
COUNTS = ("rows", "texts")
DEFAULT_CLASS_RISK = 0.1
SEED = 0  # of the row order; fixed, so that nobody can pick the seed with the best result


@dataclass(frozen=True)
class Guarantee:
    """An upper bound on a risk, with a confidence level, and limits for classes and for a decision."""

    risk_type: str = "disagreement"
    risk: float = 0.02
    confidence: float = 0.9
    test: str = "auto"
    tolerance: float | None = None  # regression only
    reference: str | None = None  # name of the model to compare with, if not the full model
    frozen: bool = False  # the reference is the last exit itself, under the name of the original model
    class_risk: float | None = None  # maximum fraction of changed predictions of every class; None: no limit
    bands: tuple[float, ...] = ()  # regression: where the bands of values start, which are the classes
    keep: tuple[str, ...] = ()  # classes that are flagged
    flag: str | None = None  # or scores that are flagged, such as "P(ABUSE) >= 0.8"
    recall: float | None = None  # of the flagged texts, minimum fraction that stays flagged
    precision: float | None = None  # of the texts flagged after early exits, minimum fraction that the model flags
    count: str = "rows"  # rows as they come, or each different text once
    group: str | None = None  # what rows are grouped by, if the test is about groups
    average: bool = False  # on average over calibrations, instead of with a confidence level
    top_k: int | None = None  # rankings only: number of documents that are compared

    def __post_init__(self) -> None:
        if self.risk_type not in RISKS:
            raise UnknownName("risk type", self.risk_type, RISKS)
        if self.test == "auto":
            object.__setattr__(self, "test", "betting" if self.group else DEFAULT_TEST[self.risk_type])
        if self.test not in BOUNDS:
            raise UnknownName("test", self.test, ["auto", *BOUNDS])
        if self.group and self.test == "binomial":
            raise BadValue("The binomial test needs independent rows; use `test='betting'` for groups of rows.")
        if self.count not in COUNTS:
            raise UnknownName("count", self.count, COUNTS)
        self._check_numbers()
        self._check_decision()

    def _check_numbers(self) -> None:
        numbers = {"risk": self.risk, "class_risk": self.class_risk}
        for name, value in numbers.items():
            if value is not None and not 0 < value < 1:
                raise BadValue(f"`{name}` must be between 0 and 1 (0.01 is one percent), got {value:g}.")
        for name in ("confidence", "recall", "precision"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise BadValue(f"`{name}` must be between 0 and 1 (such as 0.9), got {value:g}.")
        if self.tolerance is not None and not 0 <= self.tolerance < float("inf"):
            raise BadValue(f"`tolerance` must be finite and at least 0, got {self.tolerance:g}.")
        if list(self.bands) != sorted(set(self.bands)) or not all(np.isfinite(self.bands)):
            raise BadValue(f"`bands` must be finite and ascending, got {', '.join(f'{x:g}' for x in self.bands)}.")

    def _check_decision(self) -> None:
        if self.flag is not None:
            check_flag(self.flag)
        has_limit = self.recall is not None or self.precision is not None
        if self.keep and self.flag is not None:
            raise BadValue("`keep=` and `flag=` both name what is flagged; remove one of them.")
        if has_limit and not self.keep and self.flag is None:
            raise BadValue("`recall=` and `precision=` need `keep=` (classes) or `flag=` (scores).")
        if self.precision is not None and self.average:
            raise BadValue("`precision=` cannot be guaranteed with `on_average=`; remove one of them.")
        if (self.keep or self.flag is not None) and not has_limit:
            raise BadValue(f"`{'keep' if self.keep else 'flag'}=` needs `recall=` or `precision=`.")

    def check(self, answer_type: AnswerType, labelled: bool, labels: Sequence[str] = ()) -> None:
        """Raise if the guarantee does not apply to this model, or needs labels that are missing."""
        if self.risk_type == "accuracy" and not labelled:
            raise BadInput(
                "`risk_type='accuracy'` needs labels, and these rows have none. Use `risk_type='disagreement'`."
            )
        if self.risk_type == "changed" and not answer_type.has_partial_changes:
            raise BadValue("`risk_type='changed'` is for rankings only; use `risk_type='disagreement'`.")
        if self.risk_type == "lost" and not answer_type.has_items:
            raise BadValue("`risk_type='lost'` is for token classification only; use `risk_type='disagreement'`.")
        if self.risk_type == "lost" and (self.average or self.test == "binomial"):
            raise BadValue("`risk_type='lost'` is about fractions of a text's entities; use `test='betting'`.")
        if answer_type.needs_tolerance and self.tolerance is None:
            raise BadValue("A regression needs `tolerance=`: the largest difference that still counts as equal.")
        if not answer_type.needs_tolerance and self.tolerance is not None:
            raise BadValue("`tolerance=` is for regression only; remove it.")
        if self.bands and not answer_type.needs_tolerance:
            raise BadValue("`bands=` is for regression only; remove it.")
        self.decision(answer_type, labels)

    def decision(self, answer_type: AnswerType, labels: Sequence[str]) -> Decision | None:
        """Return what is flagged; raise if the model has no such class or score."""
        if (self.keep or self.flag is not None) and answer_type.may_have_several_rows:
            raise BadValue(f"`keep=` and `flag=` do not support {answer_type.title}; remove them.")
        return decision_for(self.keep, self.flag, self.bands, answer_type, labels)

    def for_model(
        self, answer_type: AnswerType, labels: Sequence[str], options: Mapping[str, Any] | None = None
    ) -> Guarantee:
        """Return the guarantee without a limit per class if the model has no classes.

        For a ranking, whose predictions may change in part, the default test is betting.
        """
        guarantee = self
        if self.class_risk is not None and not answer_type.outcome_names(labels, self.bands):
            guarantee = replace(guarantee, class_risk=None)
        if not answer_type.has_partial_changes:
            return guarantee
        top_k = int((options or {}).get("top_k", 0)) or None
        is_fraction = self.risk_type == "disagreement" and top_k != 1
        test = "betting" if is_fraction and self.test == "binomial" else self.test
        return replace(guarantee, top_k=top_k, test=test)

    @property
    def level(self) -> float:
        """δ: the probability with which the guarantee may be violated."""
        return 1 - self.confidence

    def p_value(self, losses: NDArray[Any]) -> float:
        """Return the p-value of the hypothesis that the risk is above the guaranteed one."""
        if self.risk_type == "accuracy" and self.test == "binomial":
            return BOUNDS["binomial"](np.maximum(losses, 0), self.risk, self.level)
        if self.risk_type == "accuracy" and self.test == "hoeffding-bentkus":  # from −1 … 1 to 0 … 1
            return BOUNDS[self.test]((losses + 1) / 2, (self.risk + 1) / 2, self.level)
        return BOUNDS[self.test](losses, self.risk, self.level)

    def passes_with(self, errors: int, rows: int) -> bool:
        """Return whether the overall test passes with these errors, spread evenly over the rows (or groups)."""
        if self.average:
            return (errors + 1) / (rows + 1) <= self.risk
        losses = np.zeros(rows)
        losses[np.linspace(0, rows - 1, min(errors, rows)).astype(np.int64)] = 1
        return self.p_value(losses) <= self.level

    @property
    def rows_needed(self) -> int | None:
        """The minimum number of rows (or groups) for the overall risk, without a single error."""
        return _rows_on_average(self.risk) if self.average else rows_needed(self.p_value, self.level)

    def limit_rows_needed(self, risk: float) -> int:
        """Return the minimum number of rows (or groups) to test a limit, without a single error."""
        if self.average:
            return _rows_on_average(risk)
        test = betting if self.group else binomial
        needed = rows_needed(lambda losses: test(losses, risk, self.level), self.level)
        return 2**62 if needed is None else needed

    def describe(self, answer_type: AnswerType) -> str:
        """Return the overall guarantee as text, such as "at most 1 % of predictions differ from the full model's"."""
        risk = answer_type.describe_risk(self.risk_type, self.tolerance)
        if self.top_k is not None:
            risk = answer_type.describe_top_risk(self.risk_type, self.top_k)
        if self.reference is not None:
            risk = risk.replace("the full model", self.reference)
        return f"at most {100 * self.risk:g} % {risk}"


def _rows_on_average(risk: float) -> int:
    """Return the rows that conformal risk control needs without an error: 1 / (rows + 1) must be at most the risk."""
    return int(np.ceil(1 / risk - 1 - 1e-9))


@dataclass(frozen=True)
class Risk:
    """The losses that a guarantee is about, on the rows of a trace."""

    guarantee: Guarantee
    trace: Trace

    def __post_init__(self) -> None:
        self.guarantee.check(self.trace.answer_type, self.trace.labels is not None, self.trace.about["model"]["labels"])

    def losses_per_exit(self) -> NDArray[Any]:
        """Return the loss of every row at every exit, (rows, exits)."""
        trace, rows = self.trace, self.trace.rows
        numbers = [(np.full(rows, point.number), np.full(rows, point.layer)) for point in trace.points]
        per_exit = [Replayed(*number, trace.answers_at(index)) for index, number in enumerate(numbers)]
        return np.stack([self.losses(replayed) for replayed in per_exit], 1)

    def changes_per_exit(self) -> NDArray[Any]:
        """Return what a risk model predicts, (rows, exits): the loss, or 1 if the decision about a row changes."""
        decisions = [index for index, limit in enumerate(self.limits.limits) if limit.kind != CLASS]
        changed = self.limits.changed[..., decisions].any(-1)
        return np.maximum(np.clip(self.losses_per_exit(), 0, 1), changed)

    def losses(self, replayed: Replayed) -> NDArray[Any]:
        """Return the loss of every row after early exits."""
        answer_type, tolerance = self.trace.answer_type, self.guarantee.tolerance
        if self.guarantee.risk_type == "disagreement":
            return answer_type.changes(replayed.answers, self.trace.expected, tolerance)
        if self.counted is not None:  # the mean over all rows is then that over the counted ones
            lost = np.nan_to_num(answer_type.lost(replayed.answers, self.trace.expected))
            return lost * len(lost) / max(1, self.counted.sum())
        if self.guarantee.risk_type == "changed":
            return answer_type.differ(replayed.answers, self.trace.expected, tolerance).astype(np.int64)
        labels = np.asarray(self.trace.labels)
        early, full = (
            answer_type.error(answers, labels, tolerance) for answers in (replayed.answers, self.trace.expected)
        )
        return early - full

    @cached_property
    def counted(self) -> NDArray[np.bool_] | None:
        """Which rows the overall risk is about: if items may be lost, those with items; None: all rows."""
        if self.guarantee.risk_type != "lost":
            return None
        expected = self.trace.expected
        return ~np.isnan(self.trace.answer_type.lost(expected, expected))

    @cached_property
    def limits(self) -> Limits:
        """The limits for classes and for a decision."""
        guarantee = self.guarantee
        return limits_of(
            self.trace,
            class_risk=guarantee.class_risk,
            bands=guarantee.bands,
            decision=guarantee.decision(self.trace.answer_type, self.trace.about["model"]["labels"]),
            recall=guarantee.recall,
            precision=guarantee.precision,
            needed=0 if guarantee.class_risk is None else guarantee.limit_rows_needed(guarantee.class_risk),
        )

    def limit_changes(self, replayed: Replayed) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows count and change after early exits, both (rows, limits)."""
        if self.trace.group is None:
            return self.limits.rows_at(replayed.exit - 1)
        trace, bands, labels = self.trace, self.guarantee.bands, self.trace.about["model"]["labels"]
        change = OutcomeChange(
            trace.answer_type.outcomes(trace.expected, labels, bands),
            trace.answer_type.kept_outcomes(replayed.answers, trace.expected, labels, bands),
        )
        limits = self.limits.limits
        return np.stack([change.counted(limit) for limit in limits], 1), np.stack(
            [change.changed(limit) for limit in limits], 1
        )

    # -- tests -------------------------------------------------------------------------------------

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The order in which rows (or groups) are tested."""
        clusters = self.trace.clusters
        return np.random.default_rng(SEED).permutation(len(self.trace) if clusters is None else clusters.max() + 1)

    def units(self, losses: NDArray[Any], counted: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Return the losses of the counted rows in order; of groups, their mean losses."""
        clusters = self.trace.clusters
        if clusters is None:
            order = self.order if counted is None else self.order[counted[self.order]]
            return losses[order]
        counted = np.ones(len(losses), dtype=bool) if counted is None else counted
        rows = np.bincount(clusters[counted], minlength=len(self.order))
        totals = np.bincount(clusters[counted], losses[counted], minlength=len(self.order))
        order = self.order[rows[self.order] > 0]
        return totals[order] / rows[order]

    def p_values(self, replayed: Replayed) -> NDArray[np.float64]:
        """Return the p-values of the overall risk and of every limit; 1 if a limit without a test is exceeded."""
        losses = self.losses(replayed)
        if self.counted is not None:
            losses = losses * self.counted.sum() / len(losses)
        overall = self.guarantee.p_value(self.units(losses, self.counted))
        if not len(self.limits):
            return np.array([overall])
        counted, changed = self.limit_changes(replayed)
        return np.concatenate([[overall], self._limit_p_values(counted, changed)])

    def _limit_p_values(self, counted: NDArray[np.bool_], changed: NDArray[np.bool_]) -> NDArray[np.float64]:
        risks, rows, errors = self.limits.risks, counted.sum(0), changed.sum(0)
        if self.trace.clusters is None:
            p_values = np.asarray(bdtr(errors, rows, risks))  # the binomial distribution function
        else:
            level = self.guarantee.level
            columns = ((changed[:, index] * 1.0, counted[:, index]) for index in range(len(risks)))
            p_values = np.array(
                [betting(self.units(*pair), risk, level) for pair, risk in zip(columns, risks, strict=True)]
            )
        return np.where(self.limits.is_tested, p_values, np.where(errors <= risks * rows, 0.0, 1.0))
