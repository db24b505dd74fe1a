"""The limits of a served model's guarantee: which audited rows count for a class or a decision, and which changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offramp.answers import AnswerType
from offramp.answers.answer import Answers
from offramp.calibration.decisions import Decision, decision_for
from offramp.calibration.limits import Limit, OutcomeChange

__all__ = ["MAX_RISK", "AuditLimits"]

MAX_RISK = 0.5  # weaker limits are not audited


@dataclass(frozen=True)
class AuditLimits:
    """The tested limits of a guarantee, evaluated on predictions before and after early exits."""

    limits: tuple[Limit, ...]
    answer_type: AnswerType
    labels: tuple[str, ...]
    bands: tuple[float, ...]
    decision: Decision | None

    @classmethod
    def of(cls, calibrated: Mapping[str, Any], answer_type: AnswerType, labels: Sequence[str]) -> AuditLimits:
        """Return the limits of a stored guarantee; guarantees of earlier releases have none."""
        guarantee = calibrated["guarantee"]
        bands = tuple(guarantee.get("bands") or ())
        limits = tuple(
            Limit(saved["name"], saved["kind"], saved["risk"], tuple(saved["outcomes"]))
            for saved in calibrated.get("limits") or ()
            if saved["tested"] and saved["risk"] < MAX_RISK
        )
        decision = decision_for(guarantee.get("keep") or (), guarantee.get("flag"), bands, answer_type, labels)
        return cls(limits, answer_type, tuple(labels), bands, decision)

    def changes(self, early: Answers, full: Answers) -> list[bool | None]:
        """Return for one example a result per limit: whether it changed, or None if the limit does not count it."""
        if not self.limits:
            return []
        sides = [(answers.values, getattr(answers, "logits", None)) for answers in (full, early)]
        flagged = [None if self.decision is None else self.decision.flagged(*side) for side in sides]
        change = OutcomeChange(
            self.answer_type.outcomes(full.values, self.labels, self.bands),
            self.answer_type.kept_outcomes(early.values, full.values, self.labels, self.bands),
            *flagged,
        )
        return [bool(change.changed(limit)[0]) if change.counted(limit)[0] else None for limit in self.limits]
