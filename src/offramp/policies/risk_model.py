"""The risk model: for each exit, the estimated probability that its prediction differs from the full model's.

The same confidence means different things at different exits. A logistic curve per exit, fitted on separate rows,
turns it into a risk, so that one threshold applies to all exits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from offramp.answers.answer_type import LOG_ODDS_EPS
from offramp.core.stepper import ExitOutput, ModelSpec
from offramp.errors import BadValue
from offramp.policies.certainty import largest_probability
from offramp.policies.policy import GraphBuilder, Memory, Policy
from offramp.policies.spacing import CERTAIN, log_spaced
from offramp.policies.thresholds import number

__all__ = ["NO_RISK_MODEL", "RiskModel"]

NO_RISK_MODEL = (
    "Policy 'risk' needs a risk model, but this model has none; fit one with `offramp.calibrate(model, policy='risk')`."
)


@dataclass(frozen=True)
class RiskModel(Policy):
    """Exit when the estimated probability of a changed prediction is below `threshold`.

    The risk is 1 / (1 + exp(slope · log-odds − offset)), with the log-odds of the largest probability.
    `offramp.calibrate(…, policy="risk")` and `offramp.tune(…)` fit the risk model and save it in the model's policy;
    `risk:0.02` uses it with another threshold.

    Attributes:
        threshold: risk between 0 and 1.
        offsets: one per early exit; empty if not fitted.
        slopes: one per early exit; empty if not fitted.
    """

    name: ClassVar[str] = "risk"
    title: ClassVar[str] = "risk model"
    example: ClassVar[str] = "risk:0.02"
    rising: ClassVar[bool | None] = True
    tunable: ClassVar[bool] = True
    automatic: ClassVar[bool] = True
    threshold: float
    offsets: tuple[float, ...] = ()
    slopes: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", number(self.name, "threshold", self.threshold, 0, 1))
        for field in ("offsets", "slopes"):
            value = getattr(self, field)
            values = value if isinstance(value, list | tuple) else [value]
            object.__setattr__(self, field, tuple(number(self.name, field, entry, -1e6, 1e6) for entry in values))

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Return thresholds from 0 to 1 for the model's risk model; raise if it has none."""
        if model_spec.risk_model is None:
            raise BadValue(NO_RISK_MODEL)
        return [cls(threshold, *model_spec.risk_model) for threshold in [0.0, *log_spaced(-CERTAIN, 1.0), 1.0]]

    def add_to_graph(self, graph: GraphBuilder, logits: str, exit_number: int) -> str:
        """Add `risk < threshold`."""
        index = exit_number - 1
        low, high, one, offset, slope = (
            graph.constant(np.array(number, np.float32))
            for number in (LOG_ODDS_EPS, 1 - LOG_ODDS_EPS, 1.0, self.offsets[index], self.slopes[index])
        )
        probability = graph.add("Clip", graph.together(largest_probability(graph, logits)), low, high)
        log_odds = graph.add("Log", graph.add("Div", probability, graph.add("Sub", one, probability)))
        risk = graph.add("Sigmoid", graph.add("Sub", offset, graph.add("Mul", slope, log_odds)))
        return graph.add("Less", risk, "threshold")

    @property
    def is_fitted(self) -> bool:
        """Whether the risk model is fitted."""
        return bool(self.offsets)

    def fitted_like(self, other: Policy) -> Policy:
        """Return this threshold with the fitted risk model of `other`."""
        if self.is_fitted or not isinstance(other, RiskModel):
            return self
        return replace(self, offsets=other.offsets, slopes=other.slopes)

    def fitted_spec(self, model_spec: ModelSpec) -> ModelSpec:
        """Return the model spec with this risk model."""
        return replace(model_spec, risk_model=(self.offsets, self.slopes)) if self.is_fitted else model_spec

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare the risk of each row with the threshold."""
        log_odds, memory = output.answer_type.log_odds(output.logits.float(), memory)
        offset, slope = self.offsets[output.exit - 1], self.slopes[output.exit - 1]
        return torch.sigmoid(offset - slope * log_odds) < self.threshold, memory

    def check(self, model_spec: ModelSpec) -> None:
        """Raise for question answering, or if the risk model is missing or fitted for other exits."""
        if model_spec.answer_type.multiple_rows:
            raise BadValue(
                "Policy 'risk' does not support question answering, which has several windows per text; use confidence."
            )
        if not self.is_fitted:
            raise BadValue(NO_RISK_MODEL)
        early = len(model_spec.exits) - 1
        if {len(self.offsets), len(self.slopes)} != {early}:
            raise BadValue(
                f"The risk model has {len(self.offsets)} offsets and {len(self.slopes)} slopes, but this model has "
                f"{early} early exits; fit it again with `offramp.calibrate(model, policy='risk')`."
            )
