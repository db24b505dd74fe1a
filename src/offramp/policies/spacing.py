"""Numbers spaced as certainty is: evenly in log-odds."""

from __future__ import annotations

import math

import numpy as np

from offramp.core.stepper import ModelSpec

__all__ = ["CERTAIN", "SIZE", "entropies", "log_spaced", "probabilities"]

SIZE = 200  # points of a curve
CERTAIN = 9.0  # log-odds beyond which a probability counts as certain


def log_spaced(first: float, last: float, count: int = SIZE - 2) -> list[float]:
    """Probabilities between two log-odds."""
    return [float(f"{value:.5g}") for value in 1 / (1 + np.exp(-np.linspace(first, last, count)))]


def entropies(model_spec: ModelSpec) -> list[float]:
    """From 0 to above the most."""
    most = math.log(model_spec.answer_type.alternatives(model_spec.classes))
    return [0.0, *(float(f"{most * share:.4g}") for share in log_spaced(-CERTAIN, 5.0)), math.ceil(most * 1000) / 1000]


def probabilities(model_spec: ModelSpec) -> list[float]:
    """From certain to a guess."""
    others = model_spec.answer_type.alternatives(model_spec.classes) - 1
    return [1.0, *log_spaced(CERTAIN, -math.log(others))]
