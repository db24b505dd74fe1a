"""What calibration fits to a model, as placeholders, to check policies before anything is fitted."""

from __future__ import annotations

from offramp.calibration.estimate_errors import with_placeholder_errors
from offramp.calibration.risk_model import with_placeholder_risk_model
from offramp.core.stepper import ModelSpec

__all__ = ["with_placeholders"]


def with_placeholders(model_spec: ModelSpec) -> ModelSpec:
    """Return the model spec as if a risk model and the errors of scores had been fitted."""
    return with_placeholder_errors(with_placeholder_risk_model(model_spec))
