"""What a tested setting changes: by limit, and compared with a constant prediction."""

from __future__ import annotations

from typing import Any

import numpy as np

from offramp.calibration.limits import count_units
from offramp.calibration.risks import Risk
from offramp.evaluation.traces.trace import Replayed

__all__ = ["constant_prediction", "limit_rows"]


def limit_rows(risk: Risk, replayed: Replayed) -> list[dict[str, Any]]:
    """Return the limits with the rows that they are about and how many of these changed, as saved in evidence."""
    if not len(risk.limits):
        return []
    trace = risk.trace
    names = trace.answer_type.outcome_names(trace.about["model"]["labels"], risk.guarantee.bands)
    counted, changed = risk.limit_changes(replayed)
    rows = []
    for index, limit in enumerate(risk.limits.limits):
        units = count_units(counted[:, index], trace.clusters)
        needed = risk.guarantee.limit_rows_needed(limit.risk)
        rows.append(
            {
                "name": limit.name,
                "kind": limit.kind,
                "risk": limit.risk,
                "classes": [names[outcome] for outcome in limit.outcomes],
                "outcomes": list(limit.outcomes),
                "rows": int(counted[:, index].sum()),
                "changed": int(changed[:, index].sum()),
                "tested": limit.is_tested,
                "missing": max(0, needed - units),
                "grouped": trace.clusters is not None,
            }
        )
    return rows


def constant_prediction(risk: Risk) -> str | None:
    """Return the prediction that, made for all rows, would keep within the overall risk; None if none would."""
    trace, guarantee = risk.trace, risk.guarantee
    labels, expected = trace.about["model"]["labels"], np.asarray(trace.expected)
    applies = guarantee.risk_type == "disagreement" and trace.group is None
    if not applies or not trace.answer_type.outcome_names(labels, ()):
        return None
    if trace.answer_type.has_items:
        return None
    values, counts = np.unique(expected, axis=0, return_counts=True)
    value = values[counts.argmax()]
    changed = trace.answer_type.differ(np.broadcast_to(value, expected.shape), expected)
    return trace.answer_type.format(value, labels) if changed.mean() <= guarantee.risk else None
