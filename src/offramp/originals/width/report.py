"""The evaluation report on width: heads and channels kept per layer and exit, and EBERT's FLOPs report."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.evaluation.results import WidthReport
from offramp.evaluation.traces.operations import saved_by_width
from offramp.evaluation.traces.trace import Trace
from offramp.model.config import AdaptiveConfig
from offramp.originals.width.flops import flops_report, layer_flops
from offramp.policies import Policy

__all__ = ["width_report"]


def width_report(config: AdaptiveConfig, trace: Trace, policy: Policy) -> WidthReport | None:
    """Return what all rows keep at full depth, and what rows keep by exit under a policy; None without gates."""
    if trace.kept is None:
        return None
    kept = np.asarray(trace.kept, dtype=np.float64)  # (rows, layers, heads and channels)
    lengths = np.asarray(trace.lengths, dtype=np.float64)
    flops = layer_flops(config, "exact")
    full, saved = flops.full(lengths), saved_by_width(config, trace.lengths, kept)
    heads, channels = kept.mean(0).T
    exit_numbers = trace.replay(policy).exit
    exits = []
    for index, point in enumerate(config.exit_points):
        rows = exit_numbers == point.number
        run = full[rows] * point.layer / flops.layers
        exits.append({"layer": point.layer, "rows": int(rows.sum())} | _mean_kept(kept[rows, : point.layer]))
        exits[-1]["ratio"] = float(1 - saved[rows, index].sum() / run.sum()) if run.sum() else None
    return WidthReport(
        None if config.gating is None else config.gating.target,
        float(1 - saved[:, -1].sum() / full.sum()),
        [round(float(count), 3) for count in heads],
        [round(float(count), 1) for count in channels],
        exits,
        {"heads": config.num_heads, "channels": config.num_channels},
        _ebert_report(config, heads, channels, int(trace.about["model"]["max_length"])),
    )


def _mean_kept(kept: NDArray[np.float64]) -> dict[str, float | None]:
    """Return the mean heads and channels per layer; None without rows."""
    if not kept.size:
        return {"heads": None, "channels": None}
    heads, channels = kept.mean((0, 1))
    return {"heads": round(float(heads), 3), "channels": round(float(channels), 1)}


def _ebert_report(config: AdaptiveConfig, heads: Any, channels: Any, max_length: int) -> dict[str, Any]:
    """Return EBERT's own report: all rows at maximum length, heads of size 64, one gate per head; its three lines."""
    width = config.gating
    length = (width.pad_to if width else None) or max_length
    report = flops_report(heads, channels, length, layer_flops(config, "original"), original=True)
    return {
        "length": length,
        "full": report.full,
        "dynamic": report.dynamic,
        "ratio": report.ratio,
        "lines": report.lines,
    }
