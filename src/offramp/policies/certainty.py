"""An exit's own certainty, compared with a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from offramp.core.stepper import ExitOutput, ModelSpec
from offramp.errors import BadValue
from offramp.policies.policy import GraphBuilder, Memory, Policy, refuse_regression
from offramp.policies.spacing import CERTAIN, entropies, log_spaced, probabilities
from offramp.policies.thresholds import Threshold, check_list, threshold_at, thresholds

__all__ = ["ByThreshold", "Confidence", "Entropy", "Learned", "Margin", "largest_probability"]


def largest_probability(graph: GraphBuilder, logits: str) -> str:
    """The largest probability of each row, in an ONNX graph."""
    chances = graph.add("Exp", graph.add("LogSoftmax", logits, axis=-1))
    return graph.add("ReduceMax", chances, axes=[-1], keepdims=0)


@dataclass(frozen=True)
class ByThreshold(Policy):
    """A policy with one threshold for all exits, or one per exit."""

    limit: ClassVar[float] = 1.0
    rising: ClassVar[bool | None] = True
    per_exit: ClassVar[bool] = True
    threshold: Threshold

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", thresholds(self.name, self.threshold, self.limit))

    def at(self, exit_number: int) -> float:
        """The threshold of an exit, numbered from 1."""
        return threshold_at(self.threshold, exit_number)

    def check(self, model_spec: ModelSpec) -> None:
        """Refuse a list of thresholds that does not fit the exits."""
        check_list(self.name, self.threshold, model_spec.exits)


@dataclass(frozen=True)
class _ByProbability(ByThreshold):
    """One that reads class probabilities, which a regression has not."""

    def check(self, model_spec: ModelSpec) -> None:
        """Refuse regression (unless the original allowed it) and lists that do not fit."""
        super().check(model_spec)
        refuse_regression(self.name, model_spec)


@dataclass(frozen=True)
class Entropy(_ByProbability):
    """Leave when the entropy of the answer is below `threshold`, strictly (DeeBERT, arXiv:2004.12993).

    0 never leaves; above ln(classes) everybody leaves at the first exit.
    """

    name: ClassVar[str] = "entropy"
    example: ClassVar[str] = "entropy:0.2"
    limit: ClassVar[float] = math.inf
    tunable: ClassVar[bool] = True
    automatic: ClassVar[bool] = True

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """From 0 to above the most."""
        return [cls(one) for one in entropies(model_spec)]

    def in_graph(self, graph: GraphBuilder, logits: str, exit_number: int) -> str:
        """Strictly below the threshold."""
        log = graph.add("LogSoftmax", logits, axis=-1)
        terms = graph.add("Mul", graph.add("Exp", log), log)
        entropy = graph.add("Neg", graph.add("ReduceSum", terms, graph.numbers(-1), keepdims=0))
        entropy = graph.add("Max", entropy, graph.constant(np.array(0, np.float32)))
        return graph.add("Less", entropy, "threshold")

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare each row's entropy with the exit's threshold."""
        return said.answer_type.entropy(said.logits.float()) < self.at(said.exit), {}


@dataclass(frozen=True)
class Confidence(_ByProbability):
    """Leave when the largest probability reaches `threshold`; multi-label: when every label is that sure."""

    name: ClassVar[str] = "confidence"
    example: ClassVar[str] = "confidence:0.9"
    rising: ClassVar[bool | None] = False
    tunable: ClassVar[bool] = True

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """From certain to a guess."""
        return [cls(one) for one in probabilities(model_spec)]

    def in_graph(self, graph: GraphBuilder, logits: str, exit_number: int) -> str:
        """At least the threshold."""
        return graph.add("GreaterOrEqual", largest_probability(graph, logits), "threshold")

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare each row's largest probability with the exit's threshold."""
        return said.answer_type.confidence(said.logits.float()) >= self.at(said.exit), {}


@dataclass(frozen=True)
class Margin(_ByProbability):
    """Leave when the two largest probabilities lie `threshold` apart; multi-label: the smallest |2p − 1|."""

    name: ClassVar[str] = "margin"
    example: ClassVar[str] = "margin:0.8"
    rising: ClassVar[bool | None] = False
    tunable: ClassVar[bool] = True

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """From certain to a tie."""
        return [cls(one) for one in [1.0, *(float(f"{2 * p - 1:.5g}") for p in log_spaced(CERTAIN, 0.0)), 0.0]]

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare each row's margin with the exit's threshold."""
        return said.answer_type.margin(said.logits.float()) >= self.at(said.exit), {}

    def check(self, model_spec: ModelSpec) -> None:
        """Refuse regression and lists that do not fit."""
        super().check(model_spec)
        refuse_regression(self.name, replace(model_spec, faithful=False))  # one output has no second class


@dataclass(frozen=True)
class Learned(ByThreshold):
    """Leave when the LTE module thinks the exit is unlikely to be wrong (BERxiT, EACL 2021).

    The threshold is on the original's UNcertainty: low means leave, strictly below. Serves regression too.
    """

    name: ClassVar[str] = "learned"
    example: ClassVar[str] = "learned:0.1"

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """From never wrong to always."""
        return [cls(one) for one in [0.0, *log_spaced(-CERTAIN, CERTAIN), 1.0]]

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare each row's estimated uncertainty with the exit's threshold."""
        assert said.uncertainty is not None  # check() saw to it
        return said.uncertainty.float() < self.at(said.exit), {}

    def check(self, model_spec: ModelSpec) -> None:
        """Refuse a model without the module, and lists that do not fit."""
        if not model_spec.lte:
            raise BadValue(
                "Policy 'learned' needs an LTE module, and this model has none; train one, or take another policy."
            )
        super().check(model_spec)
