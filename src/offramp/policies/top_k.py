"""A policy over groups: documents of a query that cannot reach its top k exit with the estimate of their score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from offramp.core.stepper import ExitOutput, ModelSpec
from offramp.errors import BadValue
from offramp.policies.policy import Memory, Policy
from offramp.policies.thresholds import count, number

__all__ = ["TopK", "kth_best"]

LARGEST_MARGIN, SMALLEST_MARGIN, SIZE = 20.0, 0.01, 100  # of the candidates for calibration
TOP_K = 10


@dataclass(frozen=True)
class TopK(Policy):
    """Exit when the estimated score lies more than a margin below the k-th best of the query.

    The margin is in units of the exit's error, which is fitted: the same margin means the same at every exit. Documents
    that reach the last exit have the full model's score; at least k of every query do. A query with at most k documents
    has no early exits. `offramp.adapt(…)` and `offramp.calibrate(…, policy="top-k")` fit the errors and save them in
    the model's policy; `top-k:10:3` uses them with another margin.

    Attributes:
        k: number of documents that are kept in any case.
        threshold: the margin, in units of the error.
        errors: the error of each early exit's estimates; empty if not fitted.
    """

    name: ClassVar[str] = "top-k"
    title: ClassVar[str] = "top k"
    example: ClassVar[str] = "top-k:10:3"
    rising: ClassVar[bool | None] = False
    automatic: ClassVar[bool] = True
    sees_groups: ClassVar[bool] = True
    k: int = TOP_K
    threshold: float = 3.0
    errors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", count(self.name, "k", self.k))
        object.__setattr__(self, "threshold", number(self.name, "threshold", self.threshold, 0))
        values = self.errors if isinstance(self.errors, list | tuple) else [self.errors]
        object.__setattr__(self, "errors", tuple(number(self.name, "errors", value, 0) for value in values))

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Return margins from large to small, for the model's fitted errors; raise if it has none."""
        if not model_spec.answer_type.compares_rows:
            return []
        if model_spec.errors is None:
            raise BadValue(
                "Policy 'top-k' needs the errors of the exits, but this model has none; fit them with "
                "`offramp.calibrate(model, policy='top-k')`."
            )
        k = int((model_spec.options or {}).get("top_k", TOP_K))
        margins = [float(f"{margin:.4g}") for margin in np.geomspace(LARGEST_MARGIN, SMALLEST_MARGIN, SIZE)]
        return [cls(k, margin, model_spec.errors) for margin in [*margins, 0.0]]

    def fitted_like(self, other: Policy) -> Policy:
        """Return this policy with the fitted errors of `other`."""
        if self.errors or not isinstance(other, TopK):
            return self
        return replace(self, errors=other.errors)

    def fitted_spec(self, model_spec: ModelSpec) -> ModelSpec:
        """Return the model spec with these errors."""
        return replace(model_spec, errors=self.errors) if self.errors else model_spec

    @property
    def short(self) -> str:
        """The policy without the fitted errors."""
        return f"{self.name}:{self.k}:{self.threshold:.3g}"

    def keeping(self, top_k: int | None) -> Policy:
        """Return the policy that keeps at least `top_k` documents."""
        return self if top_k is None or top_k <= self.k else replace(self, k=top_k)

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare the documents of each query."""
        scores = output.answer_type.choice(output.logits.float())[:, 0]
        group = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        group = group if output.group is None else output.group
        bound = kth_best(scores, group, self.k) - self.threshold * self.errors[output.exit - 1]
        return scores < bound, {}

    def check(self, model_spec: ModelSpec) -> None:
        """Raise unless the model ranks documents and the errors are fitted for its exits."""
        if not model_spec.answer_type.compares_rows:
            raise BadValue(f"Policy 'top-k' is for rankings; this model is for {model_spec.answer_type.title}.")
        early = len(model_spec.exits) - 1
        if len(self.errors) != early:
            raise BadValue(
                f"Policy 'top-k' has the errors of {len(self.errors)} exits, but this model has {early} early exits; "
                "fit them with `offramp.calibrate(model, policy='top-k')`."
            )

    def describe(self) -> str:
        """Return a readable description."""
        return f"top {self.k}, margin {self.threshold:.3g}"


def kth_best(scores: Tensor, group: Tensor, k: int) -> Tensor:
    """Return for every row the k-th best score of its group, (rows,); the lowest one of a smaller group."""
    order = torch.argsort(scores, descending=True, stable=True)
    order = order[torch.argsort(group[order], stable=True)]  # by group, then best first
    _, inverse, sizes = torch.unique_consecutive(group[order], return_inverse=True, return_counts=True)
    last = torch.cumsum(sizes, 0) - sizes + sizes.clamp(max=k) - 1
    bounds = torch.empty_like(scores)
    bounds[order] = scores[order][last][inverse]
    return bounds
