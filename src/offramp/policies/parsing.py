"""Policies as they are written and saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from offramp.errors import BadValue
from offramp.policies import POLICIES
from offramp.policies.policy import Policy

__all__ = ["from_dict", "parse"]


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
