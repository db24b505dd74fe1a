"""The machine: CPU name and instruction sets, and the number of threads available to this process."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

from offramp.errors import BadValue

__all__ = ["check_threads", "cpu_flags", "cpu_name", "half_precision", "has_int8_dot_products", "usable_threads"]

CGROUP_V2_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "max 100000" or "150000 100000"
CGROUP_V1_QUOTA = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
CGROUP_V1_PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
REPORTED_FLAGS = ("amx_int8", "amx_bf16", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512f", "avx2")
# flags of native arithmetic in a dtype; without it every product is converted, which is slower
HALF_PRECISION_FLAGS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp", "fphp"},
}
MAX_THREADS = 4096
INT8_FLAGS = {"amx_int8", "avx512_vnni", "avx_vnni", "asimddp", "i8mm"}


def _cpuinfo() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.is_file() else ""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def cpu_flags() -> set[str]:
    """Return the CPU's instruction set flags; empty if the system does not report them."""
    cpuinfo = _cpuinfo()
    return set(cpuinfo.get("flags", cpuinfo.get("Features", "")).split())


def cpu_name() -> str:
    """Return the CPU's name and the instruction sets that matter for speed."""
    name = _cpuinfo().get("model name", "") or platform.processor() or platform.machine()
    available = cpu_flags()
    flags = [flag for flag in REPORTED_FLAGS if flag in available]
    return f"{name} ({', '.join(flags)})" if flags else name


def half_precision() -> dict[str, bool]:
    """Return whether this CPU has native instructions, for each half-precision dtype."""
    flags = cpu_flags()
    return {dtype: bool(needed & flags) for dtype, needed in HALF_PRECISION_FLAGS.items()}


def has_int8_dot_products() -> bool:
    """Return whether the CPU accumulates int8 products in 32 bits; otherwise sums saturate at 16 bits."""
    return bool(INT8_FLAGS & cpu_flags())


def check_threads(threads: int | None) -> None:
    """Raise if the number of threads is not possible; None is the default."""
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise BadValue(f"`threads` must be between 1 and {MAX_THREADS:,}, got {threads:,}.")


def usable_threads() -> int:
    """Return the number of threads that CPU affinity and the container's CPU quota allow, at least 1."""
    pinned = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return max(1, pinned if quota is None else min(pinned, math.floor(quota)))


def _quota() -> float | None:
    """Return the container's CPU quota in cores; None: no limit."""
    try:
        if CGROUP_V2_QUOTA.is_file():
            quota, period = CGROUP_V2_QUOTA.read_text().split()
            return None if quota == "max" else int(quota) / int(period)
        if CGROUP_V1_QUOTA.is_file():
            microseconds = int(CGROUP_V1_QUOTA.read_text())
            return None if microseconds <= 0 else microseconds / int(CGROUP_V1_PERIOD.read_text())
    except (OSError, ValueError):
        return None
    return None
