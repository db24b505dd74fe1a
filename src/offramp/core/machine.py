"""How many threads this process may really use: what it is pinned to, and what its container is given."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["usable_threads"]

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # version 2: "max 100000" or "150000 100000"
OLD_QUOTA, OLD_PERIOD = (Path("/sys/fs/cgroup/cpu") / name for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def usable_threads() -> int:
    """The smaller of the affinity and the container's quota, at least 1."""
    pinned = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return max(1, pinned if quota is None else min(pinned, math.floor(quota)))


def _quota() -> float | None:
    """Cores that the container may use; None: all."""
    try:
        if QUOTA.is_file():
            most, period = QUOTA.read_text().split()
            return None if most == "max" else int(most) / int(period)
        if OLD_QUOTA.is_file():
            used = int(OLD_QUOTA.read_text())
            return None if used <= 0 else used / int(OLD_PERIOD.read_text())
    except (OSError, ValueError):
        return None
    return None
