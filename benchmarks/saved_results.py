"""Helpers for pages that are written from saved results."""

from __future__ import annotations

from typing import Any

from offramp.policies import parse

__all__ = ["guarantee_of", "policy_title"]


def guarantee_of(record: dict[str, Any]) -> Any:
    """Return the guarantee of a record; the first records call it `promise`."""
    return record.get("guarantee", record.get("promise"))


def policy_title(policy: str) -> str:
    """Return a policy as tables show it: as it is written on the command line, or in words if that is long."""
    parsed = parse(policy)
    return parsed.describe() if parsed.name == "risk" else f"`{policy}`"
