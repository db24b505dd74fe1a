"""Checks for the numbers of a policy, and thresholds per exit."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from offramp.core.stepper import ExitPoint
from offramp.errors import BadValue

__all__ = ["Threshold", "check_thresholds", "count", "number", "threshold_at", "thresholds"]

Threshold = float | tuple[float, ...]
MAX_COUNT = 1_000_000  # for numbers that count exits


def _real(policy: str, field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise BadValue(f"{policy}: {field} must be a number, got {value!r}.")
    try:
        return float(value)
    except OverflowError:  # an integer with hundreds of digits
        return math.inf


def number(policy: str, field: str, value: Any, low: float, high: float = math.inf) -> float:
    """Return a finite number between `low` and `high`; raise otherwise."""
    checked = _real(policy, field, value)
    if not math.isfinite(checked) or not low <= checked <= high:
        allowed = f"between {low:g} and {high:g}" if high < math.inf else f"finite and at least {low:g}"
        raise BadValue(f"{policy}: {field} must be {allowed}, got {checked:g}.")
    return checked


def count(policy: str, field: str, value: Any, minimum: int = 1) -> int:
    """Return an integer between `minimum` and `MAX_COUNT`; raise otherwise."""
    checked = _real(policy, field, value)
    if not minimum <= checked <= MAX_COUNT or checked % 1:
        raise BadValue(f"{policy}: {field} must be an integer between {minimum} and {MAX_COUNT:,}, got {checked:g}.")
    return int(checked)


def thresholds(policy: str, value: Any, limit: float) -> Threshold:
    """Return one number for all exits, or a tuple with one per exit; raise if a number is not valid."""
    if not isinstance(value, list | tuple):
        return number(policy, "threshold", value, 0, limit)
    if not value:
        raise BadValue(f"{policy}: the list of thresholds is empty.")
    return tuple(number(policy, f"threshold {i}", entry, 0, limit) for i, entry in enumerate(value, 1))


def threshold_at(threshold: Threshold, exit_number: int) -> float:
    """Return the threshold of an exit, numbered from 1."""
    return threshold[exit_number - 1] if isinstance(threshold, tuple) else threshold


def check_thresholds(policy: str, threshold: Threshold, exits: Sequence[ExitPoint]) -> None:
    """Raise if the number of thresholds does not match the exits; the last exit needs none."""
    if isinstance(threshold, tuple) and len(threshold) not in (len(exits), len(exits) - 1):
        raise BadValue(
            f"{policy}: got {len(threshold)} thresholds for {len(exits)} exits; use one number, or one per exit."
        )
