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
| `risk:0.02`                    | a judge that was fitted to it says its answer is that unlikely to differ |
| `layer:6`                      | it sits on that layer                                               |
| `never`                        | it is the last one                                                  |

Numbers are separated by colons; a threshold may be a list, one per exit: `entropy:0.1,0.2,0.4`.
The last exit always leaves and is never asked, so its entry may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from offramp.errors import BadValue
from offramp.policies.agreement import Patience, PatienceConfidence, Vote
from offramp.policies.certainty import Confidence, Entropy, Learned, Margin
from offramp.policies.fixed import Layer, Never
from offramp.policies.judged import Judged
from offramp.policies.policy import Memory, Policy
from offramp.registry import Registry

__all__ = [
    "POLICIES",
    "Confidence",
    "Entropy",
    "Judged",
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

POLICIES: Registry[type[Policy]] = Registry(
    "policy", [Entropy, Confidence, Margin, Patience, PatienceConfidence, Vote, Learned, Judged, Layer, Never]
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
