"""The machine: its processor, what that can compute fast, and how many threads this process may really use."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

__all__ = ["cpu_flags", "cpu_name", "half_precision", "has_int8_products", "usable_threads"]

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # version 2: "max 100000" or "150000 100000"
OLD_QUOTA, OLD_PERIOD = (Path("/sys/fs/cgroup/cpu") / name for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
SHOWN = ("amx_int8", "amx_bf16", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512f", "avx2")
# the flags that mean arithmetic in that type; without it every product is converted and takes longer
HALF = {"bfloat16": {"avx512_bf16", "amx_bf16", "bf16"}, "float16": {"avx512_fp16", "amx_fp16", "asimdhp", "fphp"}}
INT8 = {"amx_int8", "avx512_vnni", "avx_vnni", "asimddp", "i8mm"}


def _lines() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.is_file() else ""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def cpu_flags() -> set[str]:
    """The instructions that the processor has, as far as the system tells."""
    lines = _lines()
    return set(lines.get("flags", lines.get("Features", "")).split())


def cpu_name() -> str:
    """The processor, as the system calls it, with the instructions that speed depends on."""
    name = _lines().get("model name", "") or platform.processor() or platform.machine()
    there = cpu_flags()
    flags = [flag for flag in SHOWN if flag in there]
    return f"{name} ({', '.join(flags)})" if flags else name


def half_precision() -> dict[str, bool]:
    """Whether this CPU has instructions for each short type."""
    flags = cpu_flags()
    return {dtype: bool(needed & flags) for dtype, needed in HALF.items()}


def has_int8_products() -> bool:
    """Whether products of 8-bit numbers are summed in 32 bits; without, pairs of them saturate at 16."""
    return bool(INT8 & cpu_flags())


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
