"""Losses of the windows of long texts, which exit separately, for searching exits: a text has the largest one.

The test of a guarantee does not need them: it decodes the predictions of whole texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.risks import Risk
from offramp.evaluation.traces.trace import Trace

__all__ = ["per_example", "window_losses"]


def window_losses(risk: Risk) -> NDArray[Any]:
    """Return the loss of every window at every exit, (rows, exits).

    Another prediction than at the last exit counts as 1. The loss that a text has at the last exit, such as that of
    int8, counts in each of its windows.
    """
    trace = risk.trace
    last = trace.answer_type.answers(np.asarray(trace.logits[:, -1]))
    differ = [
        trace.answer_type.differ(trace.answer_type.answers(np.asarray(trace.logits[:, index])), last)
        for index in range(len(trace.points))
    ]
    full_depth = np.clip(risk.losses_per_exit()[:, -1], 0, 1)[np.asarray(trace.group)]
    return np.maximum(np.stack(differ, 1), full_depth[:, None])


def per_example(losses: NDArray[Any], trace: Trace) -> NDArray[Any]:
    """Return the largest loss of the rows of each example, (settings, examples), from (settings, rows)."""
    if trace.group is None:
        return losses
    starts = np.flatnonzero(np.diff(np.asarray(trace.group), prepend=-1))
    return np.asarray(np.maximum.reduceat(losses, starts, axis=1))
