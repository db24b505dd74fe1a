"""Grids of thresholds, evenly spaced in log-odds."""

from __future__ import annotations

import math

import numpy as np

from offramp.core.stepper import ModelSpec

__all__ = ["CERTAIN", "SIZE", "entropies", "log_spaced", "probabilities"]

SIZE = 200  # points per curve
CERTAIN = 9.0  # log-odds of a probability that counts as certain


def log_spaced(first: float, last: float, count: int = SIZE - 2) -> list[float]:
    """Return probabilities between two log-odds."""
    return [float(f"{value:.5g}") for value in 1 / (1 + np.exp(-np.linspace(first, last, count)))]


def entropies(model_spec: ModelSpec) -> list[float]:
    """Return entropies from 0 to just above the maximum."""
    maximum = math.log(model_spec.answer_type.num_alternatives(model_spec.classes))
    between = [float(f"{maximum * fraction:.4g}") for fraction in log_spaced(-CERTAIN, 5.0)]
    return [0.0, *between, math.ceil(maximum * 1000) / 1000]


def probabilities(model_spec: ModelSpec) -> list[float]:
    """Return probabilities from 1 to chance level."""
    others = model_spec.answer_type.num_alternatives(model_spec.classes) - 1
    return [1.0, *log_spaced(CERTAIN, -math.log(others))]
