"""Fit one temperature per exit, so that a threshold means the same at every exit; predictions do not change."""

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

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0


def check_temperatures(answer_type: AnswerType, labelled: bool, faithful: bool) -> None:
    """Raise for rows and models that temperatures cannot be fitted to."""
    if not answer_type.has_probabilities:
        raise BadInput("A regression has no probabilities to scale; remove `temperature=`.")
    if answer_type.per_token or answer_type.multiple_rows:
        raise BadInput("Temperatures need one prediction per row; remove `temperature=`.")
    if not labelled:
        raise BadInput("Temperatures are fitted to labels, and these rows have none; remove `temperature=`.")
    if faithful:
        raise BadInput("The exits of a model converted with `faithful=True` cannot be changed; remove `temperature=`.")


def fit_temperatures(trace: Trace) -> NDArray[np.float64]:
    """Return for every exit the temperature with the lowest log loss on the labels."""
    labels = torch.from_numpy(np.array(trace.labels))
    return np.array(
        [_fit(trace.answer_type, trace.logits[:, exit_index], labels) for exit_index in range(len(trace.points))]
    )


def _fit(answer_type: AnswerType, logits: NDArray[Any], labels: Tensor) -> float:
    scores = torch.from_numpy(logits.astype(np.float64))

    def loss(log_temperature: float) -> float:
        return float(answer_type.loss(scores / np.exp(log_temperature), labels))

    result = minimize_scalar(loss, bounds=(np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE)), method="bounded")
    return float(f"{np.exp(result.x):.4g}")
