"""What gates kept of the full width, as plain values: per layer, per exit, and as EBERT counts it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.evaluation.results import WidthReport
from offramp.evaluation.traces.operations import saved_by_width
from offramp.evaluation.traces.trace import Trace
from offramp.model.config import AdaptiveConfig
from offramp.originals.width.counting import blocks_of, report
from offramp.policies import Policy

__all__ = ["width_of_rows"]


def width_of_rows(config: AdaptiveConfig, trace: Trace, policy: Policy) -> WidthReport | None:
    """Of all rows at full depth, and of those that leave at each exit under a policy; None without gates."""
    if trace.kept is None:
        return None
    kept = np.asarray(trace.kept, dtype=np.float64)  # (rows, layers, heads and channels)
    lengths = np.asarray(trace.lengths, dtype=np.float64)
    blocks = blocks_of(config, "exact")
    full, saved = blocks.full(lengths), saved_by_width(config, trace.lengths, kept)
    heads, channels = kept.mean(0).T
    left = trace.replay(policy).exit
    exits = []
    for exit_, point in enumerate(config.exit_points):
        some = left == point.number
        run = full[some] * point.layer / blocks.layers
        exits.append({"layer": point.layer, "rows": int(some.sum())} | _kept(kept[some, : point.layer]))
        exits[-1]["ratio"] = float(1 - saved[some, exit_].sum() / run.sum()) if run.sum() else None
    return WidthReport(
        None if config.gating is None else config.gating.target,
        float(1 - saved[:, -1].sum() / full.sum()),
        [round(float(one), 3) for one in heads],
        [round(float(one), 1) for one in channels],
        exits,
        {"heads": config.num_heads, "channels": config.num_channels},
        _as_published(config, heads, channels, int(trace.about["model"]["max_length"])),
    )


def _kept(kept: NDArray[np.float64]) -> dict[str, float | None]:
    """A layer's heads and channels on the average of some rows' layers; None where nobody left."""
    if not kept.size:
        return {"heads": None, "channels": None}
    heads, channels = kept.mean((0, 1))
    return {"heads": round(float(heads), 3), "channels": round(float(channels), 1)}


def _as_published(config: AdaptiveConfig, heads: Any, channels: Any, longest: int) -> dict[str, Any]:
    """EBERT's own account: every row as long as it may be, heads of 64, a gate per head; its three lines."""
    width = config.gating
    length = (width.pad_to if width else None) or longest
    made = report(heads, channels, length, blocks_of(config, "original"), original=True)
    return {"length": length, "full": made.full, "dynamic": made.dynamic, "ratio": made.ratio, "lines": made.lines}
