"""Who may leave: frozen dataclasses, pure functions of what the exits have said so far.

| written                        | leaves at an exit when                                              |
|--------------------------------|---------------------------------------------------------------------|
| `entropy:0.2`                  | the entropy of its softmax (nats) is below the threshold            |
| `confidence:0.9`               | its largest probability reaches the threshold                       |
| `margin:0.8`                   | its two largest probabilities lie that far apart                    |
| `patience:6`, `patience:3:0.1` | so many comparisons in a row agreed (regression: within a tolerance) |
| `patience-confidence:2:0.3`    | the entropy was below the threshold at so many exits in a row       |
| `vote:3`, `vote:1.5:0.5`       | one class has that many votes (divided by exits ** power)           |
| `learned:0.1`                  | its LTE module's estimate that it is wrong is below the threshold   |
| `layer:6`                      | it sits on that layer                                               |
| `never`                        | it is the last one                                                  |

Numbers are separated by colons; a threshold may be a list, one per exit: `entropy:0.1,0.2,0.4`.
The last exit always leaves and is never asked, so its entry may be left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from offramp.errors import BadValue
from offramp.registry import Registry
from offramp.stepper import ExitPoint, Said, Shape
from offramp.thresholds import Threshold, check_list, count, number, threshold_at, thresholds

__all__ = [
    "POLICIES",
    "Confidence",
    "Entropy",
    "Layer",
    "Learned",
    "Margin",
    "Memory",
    "Never",
    "Patience",
    "PatienceConfidence",
    "Policy",
    "Vote",
    "from_dict",
    "parse",
]

Memory = Mapping[str, Tensor]
"""What a policy remembers of each row, tensors with the rows first; the loop compacts it."""


@dataclass(frozen=True)
class Policy:
    """From what the exits have said so far, who may leave.

    `step` is pure: row-wise tensors in, a Boolean per row and the new memory out. It decides in float32, as a trace
    keeps the answers, so that live and replayed decisions are the same. The last exit is never asked; everybody leaves
    there. A model is checked once, before it runs.
    """

    name: ClassVar[str]
    example: ClassVar[str]  # how one is written

    def step(self, said: Said, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Which rows leave at this exit, and what to remember of each row."""
        raise NotImplementedError

    def listens(self, point: ExitPoint) -> bool:
        """Whether the exit's answer can matter; exits that nobody listens to are not computed."""
        return True

    def check(self, shape: Shape) -> None:
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


def _refuse_regression(policy: str, shape: Shape) -> None:
    if shape.problem.is_regression and not shape.faithful:
        raise BadValue(
            f"Policy {policy!r} needs class probabilities, and this model is a regression: with one output "
            "every row would leave at the first exit. Use patience with a tolerance (patience:3:0.1) or learned."
        )


@dataclass(frozen=True)
class _ByThreshold(Policy):
    """A policy with one threshold for all exits, or one per exit."""

    limit: ClassVar[float] = 1.0
    threshold: Threshold

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", thresholds(self.name, self.threshold, self.limit))

    def at(self, exit_number: int) -> float:
        """The threshold of an exit, numbered from 1."""
        return threshold_at(self.threshold, exit_number)

    def check(self, shape: Shape) -> None:
        """Refuse a list of thresholds that does not fit the exits."""
        check_list(self.name, self.threshold, shape.exits)


@dataclass(frozen=True)
class _ByProbability(_ByThreshold):
    """One that reads class probabilities, which a regression has not."""

    def check(self, shape: Shape) -> None:
        """Refuse regression (unless the original allowed it) and lists that do not fit."""
        super().check(shape)
        _refuse_regression(self.name, shape)


@dataclass(frozen=True)
class Entropy(_ByProbability):
    """Leave when the entropy of the answer is below `threshold`, strictly (DeeBERT, arXiv:2004.12993).

    0 never leaves; above ln(classes) everybody leaves at the first exit.
    """

    name: ClassVar[str] = "entropy"
    example: ClassVar[str] = "entropy:0.2"
    limit: ClassVar[float] = math.inf

    def step(self, said: Said, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare each row's entropy with the exit's threshold."""
        return said.problem.entropy(said.logits.float()) < self.at(said.exit), {}


@dataclass(frozen=True)
class Confidence(_ByProbability):
    """Leave when the largest probability reaches `threshold`; multi-label: when every label is that sure."""

    name: ClassVar[str] = "confidence"
    example: ClassVar[str] = "confidence:0.9"

    def step(self, said: Said, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare each row's largest probability with the exit's threshold."""
        return said.problem.confidence(said.logits.float()) >= self.at(said.exit), {}


@dataclass(frozen=True)
class Margin(_ByProbability):
    """Leave when the two largest probabilities lie `threshold` apart; multi-label: the smallest |2p − 1|."""

    name: ClassVar[str] = "margin"
    example: ClassVar[str] = "margin:0.8"

    def step(self, said: Said, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare each row's margin with the exit's threshold."""
        return said.problem.margin(said.logits.float()) >= self.at(said.exit), {}

    def check(self, shape: Shape) -> None:
        """Refuse regression and lists that do not fit."""
        super().check(shape)
        _refuse_regression(self.name, replace(shape, faithful=False))  # one output has no second class


@dataclass(frozen=True)
class Learned(_ByThreshold):
    """Leave when the LTE module thinks the exit is unlikely to be wrong (BERxiT, EACL 2021).

    The threshold is on the original's UNcertainty: low means leave, strictly below. Serves regression too.
    """

    name: ClassVar[str] = "learned"
    example: ClassVar[str] = "learned:0.1"

    def step(self, said: Said, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare each row's estimated uncertainty with the exit's threshold."""
        assert said.uncertainty is not None  # check() saw to it
        return said.uncertainty.float() < self.at(said.exit), {}

    def check(self, shape: Shape) -> None:
        """Refuse a model without the module, and lists that do not fit."""
        if not shape.lte:
            raise BadValue(
                "Policy 'learned' needs an LTE module, and this model has none; train one, or take another policy."
            )
        super().check(shape)


@dataclass(frozen=True)
class Patience(Policy):
    """Leave once `patience` comparisons in a row agreed (PABEE, arXiv:2006.04152).

    An exit agrees with the one before on the class (multi-label: on the whole set of labels); in a
    regression their difference is below `tolerance`. A disagreement starts again at 0.
    """

    name: ClassVar[str] = "patience"
    example: ClassVar[str] = "patience:6"
    patience: int = 6
    tolerance: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", count(self.name, "patience", self.patience))
        if self.tolerance is not None:
            object.__setattr__(self, "tolerance", number(self.name, "tolerance", self.tolerance, 0))

    def step(self, said: Said, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Count each row's agreements in a row."""
        choice = said.problem.choice(said.logits.float())  # (rows, n)
        if memory is None:  # the first exit has nothing to compare with
            streak = torch.zeros(len(choice), dtype=torch.long, device=choice.device)
        else:
            agrees = said.problem.agree(choice, memory["choice"], self.tolerance)
            streak = torch.where(agrees, memory["streak"] + 1, 0)
        return streak >= self.patience, {"choice": choice, "streak": streak}

    def check(self, shape: Shape) -> None:
        """Refuse a regression without a tolerance."""
        if shape.problem.is_regression and self.tolerance is None:
            raise BadValue(
                "patience on a regression needs a tolerance: how close two exits must be to agree, "
                "in the units of the answer. Write patience:3:0.1, for instance."
            )


@dataclass(frozen=True)
class PatienceConfidence(Policy):
    """Leave once the entropy was below `threshold` at `patience` exits in a row (PCEE).

    Certainty has to last; the exits need not agree on the class.
    """

    name: ClassVar[str] = "patience-confidence"
    example: ClassVar[str] = "patience-confidence:2:0.3"
    patience: int
    threshold: Threshold

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", count(self.name, "patience", self.patience))
        object.__setattr__(self, "threshold", thresholds(self.name, self.threshold, math.inf))

    def step(self, said: Said, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Count each row's certain exits in a row."""
        certain = said.problem.entropy(said.logits.float()) < threshold_at(self.threshold, said.exit)
        streak = certain.long() if memory is None else torch.where(certain, memory["streak"] + 1, 0)
        return streak >= self.patience, {"streak": streak}

    def check(self, shape: Shape) -> None:
        """Refuse regression and lists that do not fit."""
        check_list(self.name, self.threshold, shape.exits)
        _refuse_regression(self.name, shape)


@dataclass(frozen=True)
class Vote(Policy):
    """Leave when a class has `threshold` votes, each exit having one, divided by (exits so far) ** `power`."""

    name: ClassVar[str] = "vote"
    example: ClassVar[str] = "vote:3"
    threshold: float = 3.0
    power: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", number(self.name, "threshold", self.threshold, 0))
        object.__setattr__(self, "power", number(self.name, "power", self.power, 0))

    def step(self, said: Said, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Count each row's votes per class."""
        vote = torch.nn.functional.one_hot(said.logits.float().argmax(-1), said.logits.shape[-1])  # (rows, classes)
        votes = vote if memory is None else memory["votes"] + vote
        return votes.amax(-1) / said.exit**self.power >= self.threshold, {"votes": votes}

    def check(self, shape: Shape) -> None:
        """Refuse anything but single-label classification."""
        if not shape.problem.is_one_class:
            raise BadValue(
                f"Policy 'vote' counts votes for one class; this model is a {shape.problem.title}. "
                "Use patience or learned."
            )


@dataclass(frozen=True)
class Layer(Policy):
    """Leave at a fixed layer: a static model of that depth."""

    name: ClassVar[str] = "layer"
    example: ClassVar[str] = "layer:6"
    layer: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer", count(self.name, "layer", self.layer))

    def step(self, said: Said, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Everybody leaves at that layer."""
        return torch.full((len(said.logits),), said.layer == self.layer, device=said.logits.device), {}

    def listens(self, point: ExitPoint) -> bool:
        """Only to the exit on that layer, not to an untrained ramp beside it."""
        return point.layer == self.layer and not point.is_ramp

    def check(self, shape: Shape) -> None:
        """Refuse a layer without an exit."""
        layers = sorted({point.layer for point in shape.exits})
        if self.layer not in layers:
            raise BadValue(f"No exit sits on layer {self.layer}; this model's exits are on {_listed(layers)}.")


@dataclass(frozen=True)
class Never(Policy):
    """Nobody leaves before the last exit: the full model."""

    name: ClassVar[str] = "never"
    example: ClassVar[str] = "never"

    def step(self, said: Said, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Nobody leaves."""
        return torch.zeros(len(said.logits), dtype=torch.bool, device=said.logits.device), {}

    def listens(self, point: ExitPoint) -> bool:
        """To no exit but the last, which always answers."""
        return False


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(str(layer) for layer in layers)


POLICIES: Registry[type[Policy]] = Registry(
    "policy", [Entropy, Confidence, Margin, Patience, PatienceConfidence, Vote, Learned, Layer, Never]
)


def from_dict(saved: Mapping[str, Any]) -> Policy:
    """The policy that `to_dict` wrote."""
    given = dict(saved)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise BadValue(f"A policy needs a name; this one is {dict(saved)!r}.")
    known = {field.name for field in fields(POLICIES[name])}
    if unknown := sorted(set(given) - known):
        raise BadValue(
            f"Policy {name!r} has no {', '.join(unknown)}; it has {', '.join(sorted(known)) or 'no numbers'}."
        )
    try:
        return POLICIES[name](**given)
    except TypeError:
        raise BadValue(f"Policy {name!r} needs {_needs(POLICIES[name])}.") from None


def parse(written: str | Mapping[str, Any] | Policy) -> Policy:
    """The policy that a user wrote, such as `entropy:0.2`, `patience:3:0.1` or `never` (or a saved one)."""
    if isinstance(written, Policy):
        return written
    if isinstance(written, Mapping):
        return from_dict(written)
    if not isinstance(written, str):
        raise BadValue(f"{written!r} is not a policy; write one like entropy:0.2.")
    name, *given = written.strip().split(":")
    kind = POLICIES[name]
    known = [field.name for field in fields(kind)]
    if len(given) > len(known):
        raise BadValue(f"{written!r} has too many numbers; policy {name!r} takes {_needs(kind)}.")
    try:
        values = {key: _read(number) for key, number in zip(known, given, strict=False)}
    except ValueError:
        raise BadValue(f"{written!r} is not a policy: after the name come numbers, as in {kind.example}.") from None
    return from_dict({"name": name} | values)


def _read(number: str) -> float | list[float]:
    if "," in number:
        return [float(one) for one in number.split(",")]
    return float(number)


def _needs(kind: type[Policy]) -> str:
    names = [field.name for field in fields(kind)]
    return f"{' and '.join(names) or 'no numbers'}, as in {kind.example}"
