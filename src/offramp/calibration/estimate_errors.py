"""Fit the errors of the policy `top-k`: per exit, how far its scores lie from the full model's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offramp.core.stepper import ModelSpec
from offramp.evaluation.traces.trace import Trace
from offramp.policies import Policy, TopK

__all__ = ["fit_errors", "with_errors", "with_placeholder_errors"]

MIN_ERROR = 1e-6  # so that a margin is never 0 times an error of 0


def fit_errors(trace: Trace) -> tuple[float, ...]:
    """Return the root mean square of the errors of every early exit, apart from what all documents of a query share.

    Only differences between documents of a query matter, so an error that is the same for all of them does not count.
    """
    assert trace.group is not None, "a ranking has groups of rows"
    group = np.asarray(trace.group)
    sizes = np.maximum(np.bincount(group), 1)
    scores = np.stack([output.answer_type.choice(output.logits.float())[:, 0].numpy() for output in trace.outputs()], 1)
    errors = []
    for estimates in scores[:, :-1].T:
        residuals = scores[:, -1].astype(np.float64) - estimates
        residuals -= (np.bincount(group, residuals, minlength=len(sizes)) / sizes)[group]
        errors.append(max(MIN_ERROR, float(np.sqrt(np.mean(residuals**2)))))
    return tuple(float(f"{error:.4g}") for error in errors)


def with_placeholder_errors(model_spec: ModelSpec) -> ModelSpec:
    """Return the model spec with placeholders, as if errors had been fitted."""
    return replace(model_spec, errors=(1.0,) * (len(model_spec.exits) - 1))


def with_errors(trace: Trace, policy: Policy) -> Trace:
    """Return the trace with the policy's errors, if it has any."""
    return replace(trace, errors=policy.errors) if isinstance(policy, TopK) else trace
