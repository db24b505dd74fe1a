"""One temperature per exit, so that one threshold means the same everywhere; answers stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

from offramp.answers import AnswerType
from offramp.errors import BadInput
from offramp.evaluation.traces.trace import Trace

__all__ = ["check_temperatures", "fit_temperatures"]

COLD, HOT = 0.05, 20.0


def check_temperatures(answer_type: AnswerType, labelled: bool, faithful: bool) -> None:
    """Refuse rows and models that temperatures cannot be fitted to."""
    if not answer_type.has_probabilities:
        raise BadInput("A regression has no probabilities to make warmer or colder; leave `temperature=` out.")
    if answer_type.per_token or answer_type.several_rows:
        raise BadInput("Temperatures are for one answer per row; leave `temperature=` out.")
    if not labelled:
        raise BadInput("A temperature is fitted to labels, and these rows have none; leave `temperature=` out.")
    if faithful:
        raise BadInput("A faithful model's exits stay as the original had them; leave `temperature=` out.")


def fit_temperatures(trace: Trace) -> NDArray[np.float64]:
    """Per exit the temperature under which its probabilities explain the labels best (least log loss)."""
    labels = torch.from_numpy(np.array(trace.labels))
    return np.array([_fit(trace.answer_type, trace.logits[:, place], labels) for place in range(len(trace.points))])


def _fit(answer_type: AnswerType, logits: NDArray[Any], labels: Tensor) -> float:
    wide = torch.from_numpy(logits.astype(np.float64))

    def loss(log_temperature: float) -> float:
        return float(answer_type.loss(wide / np.exp(log_temperature), labels))

    found = minimize_scalar(loss, bounds=(np.log(COLD), np.log(HOT)), method="bounded")
    return float(f"{np.exp(found.x):.4g}")
