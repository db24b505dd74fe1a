"""Policies that compare the certainty of one exit with a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from offramp.core.stepper import ExitOutput, ModelSpec
from offramp.errors import BadValue
from offramp.policies.policy import GraphBuilder, Memory, Policy, reject_regression
from offramp.policies.spacing import CERTAIN, entropies, log_spaced, probabilities
from offramp.policies.thresholds import Threshold, check_thresholds, threshold_at, thresholds

__all__ = ["ByThreshold", "Confidence", "Entropy", "Learned", "Margin", "largest_probability"]


def largest_probability(graph: GraphBuilder, logits: str) -> str:
    """Add the largest probability of each row to an ONNX graph; return its name."""
    probabilities = graph.add("Exp", graph.add("LogSoftmax", logits, axis=-1))
    return graph.add("ReduceMax", probabilities, axes=[-1], keepdims=0)


@dataclass(frozen=True)
class ByThreshold(Policy):
    """A policy with one threshold for all exits, or one per exit.

    Attributes:
        threshold: the threshold, or a tuple with one per exit.
    """

    limit: ClassVar[float] = 1.0
    rising: ClassVar[bool | None] = True
    per_exit: ClassVar[bool] = True
    threshold: Threshold

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", thresholds(self.name, self.threshold, self.limit))

    def at(self, exit_number: int) -> float:
        """Return the threshold of an exit, numbered from 1."""
        return threshold_at(self.threshold, exit_number)

    def check(self, model_spec: ModelSpec) -> None:
        """Raise if the number of thresholds does not match the exits."""
        check_thresholds(self.name, self.threshold, model_spec.exits)


@dataclass(frozen=True)
class _ByProbability(ByThreshold):
    """A policy on class probabilities, which a regression does not have."""

    def check(self, model_spec: ModelSpec) -> None:
        """Raise for a regression (unless faithful to an original), or if the number of thresholds does not match."""
        super().check(model_spec)
        reject_regression(self.name, model_spec)


@dataclass(frozen=True)
class Entropy(_ByProbability):
    """Exit when the entropy of the class probabilities is below `threshold` (DeeBERT, arXiv:2004.12993).

    With 0 no row exits early; above ln(number of classes) all rows exit at the first exit.

    Attributes:
        threshold: entropy in nats, or a tuple with one per exit.
    """

    name: ClassVar[str] = "entropy"
    example: ClassVar[str] = "entropy:0.2"
    limit: ClassVar[float] = math.inf
    tunable: ClassVar[bool] = True
    automatic: ClassVar[bool] = True

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Return thresholds from 0 to just above the maximum."""
        return [cls(threshold) for threshold in entropies(model_spec)]

    def add_to_graph(self, graph: GraphBuilder, logits: str, exit_number: int) -> str:
        """Add `entropy < threshold`."""
        log = graph.add("LogSoftmax", logits, axis=-1)
        terms = graph.add("Mul", graph.add("Exp", log), log)
        entropy = graph.add("Neg", graph.add("ReduceSum", terms, graph.numbers(-1), keepdims=0))
        entropy = graph.add("Max", entropy, graph.constant(np.array(0, np.float32)))
        return graph.add("Less", entropy, "threshold")

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare the entropy of each row with the threshold of the exit."""
        return output.answer_type.entropy(output.logits.float()) < self.at(output.exit), {}


@dataclass(frozen=True)
class Confidence(_ByProbability):
    """Exit when the largest probability is at least `threshold`; multi-label: for every label, max(p, 1 − p).

    Attributes:
        threshold: probability, or a tuple with one per exit.
    """

    name: ClassVar[str] = "confidence"
    example: ClassVar[str] = "confidence:0.9"
    rising: ClassVar[bool | None] = False
    tunable: ClassVar[bool] = True

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Return thresholds from 1 to chance level."""
        return [cls(threshold) for threshold in probabilities(model_spec)]

    def add_to_graph(self, graph: GraphBuilder, logits: str, exit_number: int) -> str:
        """Add `largest probability >= threshold`."""
        return graph.add("GreaterOrEqual", largest_probability(graph, logits), "threshold")

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare the largest probability of each row with the threshold of the exit."""
        return output.answer_type.confidence(output.logits.float()) >= self.at(output.exit), {}


@dataclass(frozen=True)
class Margin(_ByProbability):
    """Exit when the two largest probabilities differ by at least `threshold`; multi-label: the smallest |2p − 1|.

    Attributes:
        threshold: difference of probabilities, or a tuple with one per exit.
    """

    name: ClassVar[str] = "margin"
    example: ClassVar[str] = "margin:0.8"
    rising: ClassVar[bool | None] = False
    tunable: ClassVar[bool] = True

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Return thresholds from 1 to 0."""
        between = [float(f"{2 * p - 1:.5g}") for p in log_spaced(CERTAIN, 0.0)]
        return [cls(threshold) for threshold in [1.0, *between, 0.0]]

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare the margin of each row with the threshold of the exit."""
        return output.answer_type.margin(output.logits.float()) >= self.at(output.exit), {}

    def check(self, model_spec: ModelSpec) -> None:
        """Raise for a regression, or if the number of thresholds does not match the exits."""
        super().check(model_spec)
        reject_regression(self.name, replace(model_spec, faithful=False))  # a margin needs two classes


@dataclass(frozen=True)
class Learned(ByThreshold):
    """Exit when the learning-to-exit (LTE) module's uncertainty is below `threshold` (BERxiT, EACL 2021).

    Also applies to regression.

    Attributes:
        threshold: uncertainty between 0 and 1, or a tuple with one per exit.
    """

    name: ClassVar[str] = "learned"
    example: ClassVar[str] = "learned:0.1"

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Return thresholds from 0 to 1."""
        return [cls(threshold) for threshold in [0.0, *log_spaced(-CERTAIN, CERTAIN), 1.0]]

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare the uncertainty of each row with the threshold of the exit."""
        assert output.uncertainty is not None  # ensured by check()
        return output.uncertainty.float() < self.at(output.exit), {}

    def check(self, model_spec: ModelSpec) -> None:
        """Raise if the model has no LTE module, or if the number of thresholds does not match the exits."""
        if model_spec.answer_type.compares_rows:
            raise BadValue("Policy 'learned' does not support rankings. Use top-k.")
        if not model_spec.lte:
            raise BadValue(
                "Policy 'learned' needs an LTE module, but this model has none; train one, or use another policy."
            )
        super().check(model_spec)
