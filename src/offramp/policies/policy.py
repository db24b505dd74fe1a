"""What a policy is: from what the exits have said so far, who may leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol

from torch import Tensor

from offramp.core.stepper import ExitOutput, ExitPoint, ModelSpec
from offramp.errors import BadValue
from offramp.policies.thresholds import Threshold

__all__ = ["GraphBuilder", "Memory", "Policy", "refuse_regression"]

SHOWN = ("patience", "threshold", "tolerance", "layer")  # the numbers that `describe` shows

Memory = Mapping[str, Tensor]
"""What a policy remembers of each row, tensors with the rows first; the loop compacts it."""


class GraphBuilder(Protocol):
    """What a policy needs to become a part of an ONNX graph."""

    def add(self, kind: str, *inputs: str, **options: Any) -> str:
        """A node with one output, which is its name."""
        ...

    def constant(self, value: Any) -> str:
        """A constant array."""
        ...

    def numbers(self, *values: int) -> str:
        """Whole numbers."""
        ...


@dataclass(frozen=True)
class Policy:
    """From what the exits have said so far, who may leave.

    `step` is pure: row-wise tensors in, a Boolean per row and the new memory out. It decides in float32, as a trace
    keeps the answers, so that live and replayed decisions are the same. The last exit is never asked; everybody leaves
    there. A model is checked once, before it runs.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # what people read; default: the name
    example: ClassVar[str]  # how one is written
    rising: ClassVar[bool | None] = None  # whether a larger threshold lets more rows exit; None: it has no threshold
    counts: ClassVar[bool] = False  # its number counts exits
    per_exit: ClassVar[bool] = False  # every exit may have a threshold of its own
    tunable: ClassVar[bool] = False  # an exit decides by itself, so that sets of exits can be compared
    automatic: ClassVar[bool] = False  # tried where the best policy is asked for
    is_static: ClassVar[bool] = False  # the same depth for all rows: no exit on the way is asked
    sees_groups: ClassVar[bool] = False  # decides about all rows of an example together: they stay in one batch

    def step(self, said: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Which rows leave at this exit, and what to remember of each row."""
        raise NotImplementedError

    @classmethod
    def settings(cls, model_spec: ModelSpec) -> list[Policy]:
        """Settings worth trying on a model, from safe to risky; none where there is nothing to choose."""
        return []

    @classmethod
    def from_count(cls, count: int) -> Policy:
        """With a number of exits, for a policy that counts them."""
        raise NotImplementedError

    @property
    def parameter(self) -> float | None:
        """The number that a curve is drawn over."""
        for name in ("tolerance", "threshold", "patience", "layer"):
            value = getattr(self, name, None)
            if value is not None and not isinstance(value, tuple):
                return float(value)
        return None

    def in_graph(self, graph: GraphBuilder, logits: str, exit_number: int) -> str:
        """Which rows exit, as nodes of an ONNX graph whose input `threshold` is the policy's; returns their name."""
        raise BadValue(f"A single file cannot exit by {self.name!r}; it exits by entropy:T, confidence:T or risk:T.")

    def listens(self, point: ExitPoint) -> bool:
        """Whether the exit's answer can matter; exits that nobody listens to are not computed."""
        return True

    def check(self, model_spec: ModelSpec) -> None:
        """Refuse a model that this policy cannot serve."""

    def to_dict(self) -> dict[str, Any]:
        """Name and numbers, as they stand in a model's config."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"name": self.name} | {
            key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
        }

    def with_threshold(self, threshold: Threshold) -> Policy:
        """The same policy with another threshold."""
        if not any(field.name == "threshold" for field in fields(self)):
            raise BadValue(f"Policy {self.name!r} has no threshold to set; name a policy that has one.")
        changed: dict[str, Any] = {"threshold": threshold}
        return replace(self, **changed)

    def describe(self) -> str:
        """The policy for people to read: `entropy, threshold 0.2`. `str()` has every digit and can be parsed again."""
        title, parts = self.title or self.name, []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in SHOWN or value is None:
                continue
            if isinstance(value, tuple):
                parts.append(f"one {field.name} per exit")
            else:
                parts.append(f"{value:.3g}" if field.name == title else f"{field.name} {value:.3g}")
        first = f"{title} {parts.pop(0)}" if parts and parts[0][0].isdigit() else title
        return ", ".join([first, *parts])

    def __str__(self) -> str:
        values = [(getattr(self, field.name), field.default) for field in fields(self)]
        while len(values) > 1 and values[-1][0] == values[-1][1]:  # what need not be said
            values.pop()
        return ":".join([self.name, *(_written(value) for value, _ in values)])


def _written(number: float | tuple[float, ...] | None) -> str:
    if number is None:
        return ""
    if isinstance(number, tuple):
        return ",".join(_written(one) for one in number)
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def refuse_regression(policy: str, model_spec: ModelSpec) -> None:
    """A regression has no class probabilities, whatever the originals did."""
    if not model_spec.answer_type.has_probabilities and not model_spec.faithful:
        raise BadValue(
            f"Policy {policy!r} needs class probabilities, and this model is a regression: with one output "
            "every row would leave at the first exit. Use patience with a tolerance (patience:3:0.1) or learned."
        )
