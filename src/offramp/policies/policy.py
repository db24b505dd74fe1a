"""The base class of exit policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol

from torch import Tensor

from offramp.core.stepper import ExitOutput, ExitPoint, ModelSpec
from offramp.errors import BadValue
from offramp.policies.thresholds import Threshold

__all__ = ["GraphBuilder", "Memory", "Policy", "reject_regression"]

DESCRIBED = ("patience", "threshold", "tolerance", "layer")  # fields in `describe`

Memory = Mapping[str, Tensor]
"""State of a policy per row: tensors with rows as the first dimension; the loop drops rows that exit."""


class GraphBuilder(Protocol):
    """Builds the nodes of an ONNX graph."""

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        ...

    def constant(self, value: Any) -> str:
        """Add a constant and return its name."""
        ...

    def numbers(self, *values: int) -> str:
        """Add a constant vector of integers and return its name."""
        ...

    def together(self, probability: str) -> str:
        """Add the probability of all words of a row together, if logits are per token; else return the given one."""
        ...


@dataclass(frozen=True)
class Policy:
    """An exit policy decides, from the outputs of the exits so far, which rows exit.

    `step` is pure: row-wise tensors in, a Boolean per row and the new memory out. It computes in float32, the precision
    of a trace, so that live and replayed decisions are equal. It is not called for the last exit, where all rows exit.
    `check` is called once, before a model runs.

    Examples:
        >>> policy = offramp.policies.parse("entropy:0.2")
        >>> policy.describe()
        'entropy, threshold 0.2'
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # name in `describe` (default: the name)
    example: ClassVar[str]  # as written by a user
    rising: ClassVar[bool | None] = None  # whether more rows exit with a larger threshold; None: it has no threshold
    counts: ClassVar[bool] = False  # its number counts exits
    per_exit: ClassVar[bool] = False  # each exit may have a separate threshold
    tunable: ClassVar[bool] = False  # decisions do not depend on earlier exits, so sets of exits can be compared
    automatic: ClassVar[bool] = False  # tried by `policy="auto"`
    is_static: ClassVar[bool] = False  # all rows exit at the same layer
    sees_groups: ClassVar[bool] = False  # decides for all rows of an example together, so they stay in one batch

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Return which rows exit here, and the memory for the next exit.

        Args:
            output: output of the current exit.
            memory: memory returned at the previous exit; None at the first.
        """
        raise NotImplementedError

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Return candidates for a model, from safe to risky; empty if the policy has nothing to choose."""
        return []

    @classmethod
    def from_count(cls, count: int) -> Policy:
        """Return the policy with this number of exits, for a policy that counts them."""
        raise NotImplementedError

    @property
    def parameter(self) -> float | None:
        """The number that varies along a speed–quality curve."""
        for name in ("tolerance", "threshold", "patience", "layer"):
            value = getattr(self, name, None)
            if value is not None and not isinstance(value, tuple):
                return float(value)
        return None

    @property
    def short(self) -> str:
        """The policy as a user writes it, without what is fitted to a model."""
        return f"{self.name}:{self.parameter:.3g}"

    def add_to_graph(self, graph: GraphBuilder, logits: str, exit_number: int) -> str:
        """Add the decision to an ONNX graph with the input `threshold`; return the name of the Boolean output."""
        raise BadValue(f"A single ONNX file does not support policy {self.name!r}; use entropy, confidence or risk.")

    def keeping(self, top_k: int | None) -> Policy:
        """Return the policy that keeps at least the `top_k` best rows of an example, if it compares them."""
        return self

    def needs_exit(self, point: ExitPoint) -> bool:
        """Return whether the policy uses an exit's output; heads that are not needed do not run."""
        return True

    def check(self, model_spec: ModelSpec) -> None:
        """Raise if the policy does not apply to a model."""

    def fitted_like(self, other: Policy) -> Policy:
        """Return the policy with what was fitted to a model, from the model's own policy, if it has none."""
        return self

    def fitted_spec(self, model_spec: ModelSpec) -> ModelSpec:
        """Return the model spec with what was fitted to a model, if this is its policy."""
        return model_spec

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the numbers, as saved in a model's config."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"name": self.name} | {
            key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
        }

    def with_threshold(self, threshold: Threshold) -> Policy:
        """Return the policy with another threshold."""
        if not any(field.name == "threshold" for field in fields(self)):
            raise BadValue(f"Policy {self.name!r} has no threshold; use a policy that has one, such as entropy.")
        changed: dict[str, Any] = {"threshold": threshold}
        return replace(self, **changed)

    def describe(self) -> str:
        """Return a readable description; `str(policy)` has all digits and can be parsed."""
        title, parts = self.title or self.name, []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in DESCRIBED or value is None:
                continue
            if isinstance(value, tuple):
                parts.append(f"one {field.name} per exit")
            else:
                parts.append(f"{value:.3g}" if field.name == title else f"{field.name} {value:.3g}")
        first = f"{title} {parts.pop(0)}" if parts and parts[0][0].isdigit() else title
        return ", ".join([first, *parts])

    def __str__(self) -> str:
        values = [(getattr(self, field.name), field.default) for field in fields(self)]
        while len(values) > 1 and values[-1][0] == values[-1][1]:  # defaults are omitted
            values.pop()
        return ":".join([self.name, *(_format(value) for value, _ in values)])


def _format(value: float | tuple[float, ...] | None) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(_format(number) for number in value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def reject_regression(policy: str, model_spec: ModelSpec) -> None:
    """Raise for a regression, which has no class probabilities, unless the model is `faithful` to an original."""
    if model_spec.answer_type.compares_rows:
        raise BadValue(f"Policy {policy!r} needs class probabilities, which a ranking does not have. Use top-k.")
    if not model_spec.answer_type.has_probabilities and not model_spec.faithful:
        raise BadValue(
            f"Policy {policy!r} needs class probabilities, but this model is a regression. "
            "Use patience with a tolerance, such as patience:3:0.1, or learned."
        )
