"""The numbers of a policy: what they may be, and how a threshold per exit is read."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from offramp.core.stepper import ExitPoint
from offramp.errors import BadValue

__all__ = ["Threshold", "check_list", "count", "number", "threshold_at", "thresholds"]

Threshold = float | tuple[float, ...]
MOST = 1_000_000  # of anything that is counted in exits


def _real(policy: str, field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise BadValue(f"{policy}: {field} is {value!r}; it must be a number.")
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf


def number(policy: str, field: str, value: Any, low: float, high: float = math.inf) -> float:
    """A finite number between `low` and `high`."""
    found = _real(policy, field, value)
    if not math.isfinite(found) or not low <= found <= high:
        upper = f"and {high:g}" if high < math.inf else "and finite"
        raise BadValue(f"{policy}: {field} is {found:g}; it must lie between {low:g} {upper}.")
    return found


def count(policy: str, field: str, value: Any, least: int = 1) -> int:
    """A whole number from 1 (or another least one) to `MOST`."""
    found = _real(policy, field, value)
    if not least <= found <= MOST or found % 1:
        raise BadValue(f"{policy}: {field} is {found:g}; it must be a whole number from {least} to {MOST:,}.")
    return int(found)


def thresholds(policy: str, given: Any, limit: float) -> Threshold:
    """One number for all exits, or a tuple with one per exit."""
    if not isinstance(given, list | tuple):
        return number(policy, "threshold", given, 0, limit)
    if not given:
        raise BadValue(f"{policy}: the list of thresholds is empty.")
    return tuple(number(policy, f"threshold {i}", one, 0, limit) for i, one in enumerate(given, 1))


def threshold_at(threshold: Threshold, exit_number: int) -> float:
    """The threshold of an exit, numbered from 1."""
    return threshold[exit_number - 1] if isinstance(threshold, tuple) else threshold


def check_list(policy: str, threshold: Threshold, exits: Sequence[ExitPoint]) -> None:
    """Refuse a list that does not fit the exits."""
    # the last exit is never asked, so its entry may be missing
    if isinstance(threshold, tuple) and len(threshold) not in (len(exits), len(exits) - 1):
        raise BadValue(
            f"{policy}: {len(threshold)} thresholds for {len(exits)} exits; give one number, or one per exit."
        )
