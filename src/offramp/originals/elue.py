"""FLOPs, score and parameter tracks as the ELUE benchmark defines them.

ELUE's counter sums the multiply-accumulates of one forward pass at the padded length: linear layers (without biases),
two per element of a LayerNorm, and in attention 2 L² per head in addition to the products. FLOPs are twice that. A row
that exits early also pays for the heads of all earlier exits.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.errors import BadInput, BadValue
from offramp.model.config import AdaptiveConfig

__all__ = ["ELUE_LENGTH", "TRACKS", "elue_score", "flops_per_exit", "macs_per_exit", "read_reference", "track"]

ELUE_LENGTH = 128  # tokens that ELUE's texts are padded to
SLACK = 0.01  # relative; for the exit heads of a dynamic model, which a static reference does not have
TRACKS = (40, 55, 70, 110)  # millions of parameters
SUPPORTED_FAMILIES = ("bert", "elasticbert", "roberta", "xlm-roberta", "electra", "distilbert", "mpnet", "albert")

Curve = Sequence[tuple[float, float]]  # (FLOPs, score)


def macs_per_exit(config: AdaptiveConfig, length: int = ELUE_LENGTH, static: bool = False) -> NDArray[np.int64]:
    """Return the multiply-accumulates of a row that exits at each exit; `static`: without earlier heads."""
    backbone = config.backbone
    if backbone.model_type not in SUPPORTED_FAMILIES:
        raise BadValue(
            f"ELUE's FLOPs counter does not support {backbone.model_type}. Supported: {', '.join(SUPPORTED_FAMILIES)}."
        )
    hidden, heads = config.hidden_size, int(backbone.num_attention_heads)
    inner = int(getattr(backbone, "intermediate_size", 0) or backbone.hidden_dim)
    layer = (
        4 * length * hidden**2 + 2 * length**2 * (hidden + heads) + 2 * length * hidden * inner + 4 * length * hidden
    )
    layer *= int(getattr(backbone, "inner_group_num", 1))
    embedding = int(getattr(backbone, "embedding_size", hidden))
    embeddings = 2 * length * embedding + (length * embedding * hidden if embedding != hidden else 0)
    layers = np.array([spec.layer for spec in config.exit_specs], dtype=np.int64)
    poolers = np.array([0 if spec.head == "linear" else hidden**2 for spec in config.exit_specs], dtype=np.int64)
    exit_heads = poolers + hidden * config.num_labels
    return embeddings + layers * layer + (exit_heads if static else np.cumsum(exit_heads))


def flops_per_exit(config: AdaptiveConfig, length: int = ELUE_LENGTH, static: bool = False) -> NDArray[np.int64] | None:
    """Return the FLOPs of a row that exits at each exit; None if ELUE's counter does not support the model."""
    has_ramp = config.faithful and config.ramp == "answers"
    if config.backbone.model_type not in SUPPORTED_FAMILIES or has_ramp:
        return None
    return 2 * macs_per_exit(config, length, static)


def elue_score(points: Curve, reference: Curve, clamp: bool = False) -> float:
    """Return the mean height of the points above the reference curve, which is linear between its points.

    A point beyond the curve's ends is an error; with `clamp` it is compared with the nearest end.
    """
    curve = sorted(reference)
    if len(curve) < 2 or len({flops for flops, _ in curve}) < len(curve):
        raise BadInput("The reference curve needs at least two points with different FLOPs.")
    if not points:
        raise BadInput("There are no points to score.")
    if any(not score <= 1 for _, score in curve):
        raise BadInput("The scores of the reference curve must be between 0 and 1, not percent or NaN.")
    (low, _), (high, _) = curve[0], curve[-1]
    for flops, _ in points:
        if not clamp and not low * (1 - SLACK) <= flops <= high * (1 + SLACK):
            raise BadInput(
                f"The reference curve covers {low / 1e6:,.4g} to {high / 1e6:,.4g} MFLOPs, but a point is at "
                f"{flops / 1e6:,.4g}; use a longer curve, or set `clamp=True`."
            )
    curve_flops, curve_scores = np.array(curve).T
    point_flops, scores = np.array(points).T
    return float(np.mean(scores - np.interp(point_flops, curve_flops, curve_scores)))


def read_reference(file: Path) -> list[tuple[float, float]]:
    """Read a CSV file with the columns flops and score (0 to 1), one row per static depth."""
    if not file.is_file():
        raise BadInput(f"No such file: {file}.")
    try:
        text = file.read_text("utf-8-sig")
    except UnicodeDecodeError as err:
        raise BadInput(f"{file} is not UTF-8; save it as UTF-8.") from err
    rows = csv.DictReader(io.StringIO(text))
    if not {"flops", "score"} <= set(rows.fieldnames or ()):
        raise BadInput(f"{file} has the columns {', '.join(rows.fieldnames or ())}; it needs flops and score.")
    try:
        return [(float(row["flops"]), float(row["score"])) for row in rows]
    except (TypeError, ValueError) as err:
        raise BadInput(f"{file}, line {rows.line_num}: flops and score must be numbers ({err}).") from err


def track(parameters: int) -> str:
    """Return ELUE's track for a number of parameters."""
    for limit in TRACKS:
        if parameters < limit * 1e6:
            return f"< {limit} M"
    return f"≥ {TRACKS[-1]} M"
