"""A judge of who may leave: per exit, how likely its answer differs from the one that is to be kept.

The same certainty means different things at different exits. A logistic curve per exit, fitted on rows of their own,
turns it into a risk, and one threshold on that risk serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from offramp.answers.answer_type import LIKELIEST
from offramp.core.stepper import ExitOutput, ModelSpec
from offramp.errors import BadValue
from offramp.policies.certainty import largest_probability
from offramp.policies.policy import GraphBuilder, Memory, Policy
from offramp.policies.spacing import CERTAIN, log_spaced
from offramp.policies.thresholds import number

__all__ = ["NO_RISK_MODEL", "RiskModel"]

NO_RISK_MODEL = (
    "Policy 'risk' needs a judge, and this model has none; fit one: `offramp.calibrate(model, policy='risk')`"
)


@dataclass(frozen=True)
class RiskModel(Policy):
    """Leave when the judge's risk is below `threshold`: 1 / (1 + exp(slope · sureness − offset)), strictly.

    `offramp.calibrate(…, policy="risk")` and `offramp.tune(…)` fit a judge and write it into the model's policy, where
    a threshold that is given without one finds it.
    """

    name: ClassVar[str] = "risk"
    title: ClassVar[str] = "risk model"
    example: ClassVar[str] = "risk:0.02"
    rising: ClassVar[bool | None] = True
    tunable: ClassVar[bool] = True
    automatic: ClassVar[bool] = True
    threshold: float
    offsets: tuple[float, ...] = ()  # one per early exit
    slopes: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", number(self.name, "threshold", self.threshold, 0, 1))
        for field in ("offsets", "slopes"):
            given = getattr(self, field)
            values = given if isinstance(given, list | tuple) else [given]
            object.__setattr__(self, field, tuple(number(self.name, field, one, -1e6, 1e6) for one in values))

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """By the risk model of the model_spec; without one there is nothing to choose from."""
        if model_spec.risk_model is None:
            raise BadValue(NO_RISK_MODEL)
        return [cls(one, *model_spec.risk_model) for one in [0.0, *log_spaced(-CERTAIN, 1.0), 1.0]]

    def in_graph(self, graph: GraphBuilder, logits: str, exit_number: int) -> str:
        """Strictly below the threshold."""
        place = exit_number - 1
        least, most, one, offset, slope = (
            graph.constant(np.array(number, np.float32))
            for number in (LIKELIEST, 1 - LIKELIEST, 1.0, self.offsets[place], self.slopes[place])
        )
        chance = graph.add("Clip", largest_probability(graph, logits), least, most)
        sure = graph.add("Log", graph.add("Div", chance, graph.add("Sub", one, chance)))
        risk = graph.add("Sigmoid", graph.add("Sub", offset, graph.add("Mul", slope, sure)))
        return graph.add("Less", risk, "threshold")

    @property
    def is_fitted(self) -> bool:
        """Whether it has a judge."""
        return bool(self.offsets)

    def fitted_like(self, other: Policy) -> RiskModel:
        """The same threshold with another's judge."""
        if self.is_fitted or not isinstance(other, RiskModel):
            return self
        return replace(self, offsets=other.offsets, slopes=other.slopes)

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare each row's risk with the threshold."""
        sure, memory = said.answer_type.log_odds(said.logits.float(), memory)
        offset, slope = self.offsets[said.exit - 1], self.slopes[said.exit - 1]
        return torch.sigmoid(offset - slope * sure) < self.threshold, memory

    def check(self, model_spec: ModelSpec) -> None:
        """Refuse spans, a policy without a judge, and a judge of other exits."""
        if model_spec.answer_type.several_rows:
            raise BadValue(
                "Policy 'risk' judges one answer per text, and a question has one per window; use confidence."
            )
        if not self.is_fitted:
            raise BadValue(NO_RISK_MODEL)
        early = len(model_spec.exits) - 1
        if {len(self.offsets), len(self.slopes)} != {early}:
            raise BadValue(
                f"risk: a judge of {len(self.offsets)} and {len(self.slopes)} early exits, and this model has {early}; "
                "fit it again with `offramp.calibrate(model, policy='risk')`."
            )
