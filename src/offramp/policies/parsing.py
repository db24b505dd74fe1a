"""Parse policies from text and from saved dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from offramp.errors import BadValue
from offramp.policies import POLICIES
from offramp.policies.policy import Policy

__all__ = ["from_dict", "parse"]


def from_dict(saved: Mapping[str, Any]) -> Policy:
    """Return the policy that `Policy.to_dict` saved.

    Args:
        saved: a dict with the key `name` and the numbers of the policy.

    Returns:
        The policy.

    Examples:
        >>> offramp.policies.from_dict({"name": "entropy", "threshold": 0.2})
    """
    values = dict(saved)
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise BadValue(f"A saved policy needs a `name`, got {dict(saved)!r}.")
    known = {field.name for field in fields(POLICIES[name])}
    if unknown := sorted(set(values) - known):
        available = ", ".join(sorted(known)) or "no numbers"
        raise BadValue(f"Policy {name!r} has no {', '.join(unknown)}. Available: {available}.")
    try:
        return POLICIES[name](**values)
    except TypeError:
        raise BadValue(f"Policy {name!r} needs {_expected(POLICIES[name])}.") from None


def parse(written: str | Mapping[str, Any] | Policy) -> Policy:
    """Parse a policy.

    Args:
        written: text such as `entropy:0.2`, `patience:3:0.1` or `never`, a saved dict, or a policy.

    Returns:
        The policy.

    Examples:
        >>> offramp.policies.parse("entropy:0.2")
    """
    if isinstance(written, Policy):
        return written
    if isinstance(written, Mapping):
        return from_dict(written)
    if not isinstance(written, str):
        raise BadValue(f"{written!r} is not a policy; use the form entropy:0.2.")
    name, *parts = written.strip().split(":")
    policy_class = POLICIES[name]
    known = [field.name for field in fields(policy_class)]
    if len(parts) > len(known):
        raise BadValue(f"{written!r} has too many numbers; policy {name!r} takes {_expected(policy_class)}.")
    try:
        values = {field: _number(part) for field, part in zip(known, parts, strict=False)}
    except ValueError:
        raise BadValue(
            f"{written!r} is not a policy: expected numbers after the name, as in {policy_class.example}."
        ) from None
    return from_dict({"name": name} | values)


def _number(text: str) -> float | list[float]:
    if "," in text:
        return [float(number) for number in text.split(",")]
    return float(text)


def _expected(policy_class: type[Policy]) -> str:
    names = [field.name for field in fields(policy_class)]
    return f"{' and '.join(names) or 'no numbers'}, as in {policy_class.example}"
