"""ELUE's own accounts: operations as its counter counts them, its score against a reference curve, its tracks.

The counter sums multiply-accumulates of one forward pass at the padded length: linear layers (biases free), two per
element of a LayerNorm, and in attention 2 L² per head beside the products. Operations are twice that. A row that
leaves early pays for every exit on its way.
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

__all__ = ["LENGTH", "TRACKS", "elue_score", "flops_per_exit", "macs_per_exit", "read_reference", "track"]

LENGTH = 128  # tokens that ELUE's texts are padded to
SLACK = 0.01  # a dynamic model's heads on the way, which a static reference has not
TRACKS = (40, 55, 70, 110)  # millions of parameters
COUNTED = ("bert", "elasticbert", "roberta", "xlm-roberta", "electra", "distilbert", "mpnet", "albert")

Curve = Sequence[tuple[float, float]]  # (operations, score)


def macs_per_exit(config: AdaptiveConfig, length: int = LENGTH, alone: bool = False) -> NDArray[np.int64]:
    """Multiply-accumulates of a row that leaves at each exit, shallow to deep; `alone`: no exit before it is asked."""
    shape = config.backbone
    if shape.model_type not in COUNTED:
        raise BadValue(f"ELUE's counter knows {', '.join(COUNTED)}; how it would count {shape.model_type} is unknown.")
    hidden, heads = config.hidden_size, int(shape.num_attention_heads)
    inner = int(getattr(shape, "intermediate_size", 0) or shape.hidden_dim)
    layer = (
        4 * length * hidden**2 + 2 * length**2 * (hidden + heads) + 2 * length * hidden * inner + 4 * length * hidden
    )
    layer *= int(getattr(shape, "inner_group_num", 1))
    embedding = int(getattr(shape, "embedding_size", hidden))
    total = 2 * length * embedding + (length * embedding * hidden if embedding != hidden else 0)
    layers = np.array([spec.layer for spec in config.exit_specs], dtype=np.int64)
    poolers = np.array([0 if spec.head == "linear" else hidden**2 for spec in config.exit_specs], dtype=np.int64)
    heads = poolers + hidden * config.num_labels
    return total + layers * layer + (heads if alone else np.cumsum(heads))


def flops_per_exit(config: AdaptiveConfig, length: int = LENGTH, alone: bool = False) -> NDArray[np.int64] | None:
    """Operations of a row that leaves at each exit; None where ELUE's counter does not know the family or the ramp."""
    ramp_answers = config.faithful and config.ramp == "answers"
    if config.backbone.model_type not in COUNTED or ramp_answers:
        return None
    return 2 * macs_per_exit(config, length, alone)


def elue_score(points: Curve, reference: Curve, clamp: bool = False) -> float:
    """The mean height of the points above the reference curve, which is linear between its points.

    A point beyond the curve's ends is refused, or measured against the nearest end.
    """
    curve = sorted(reference)
    if len(curve) < 2 or len({flops for flops, _ in curve}) < len(curve):
        raise BadInput("A reference curve has at least two points, each at another number of operations.")
    if not points:
        raise BadInput("There is no point to score.")
    if any(not score <= 1 for _, score in curve):
        raise BadInput("A reference curve has scores up to 1, not percent, and no NaN.")
    (low, _), (high, _) = curve[0], curve[-1]
    for flops, _ in points:
        if not clamp and not low * (1 - SLACK) <= flops <= high * (1 + SLACK):
            raise BadInput(
                f"The reference curve covers {low / 1e6:,.4g} to {high / 1e6:,.4g} MFLOPs, and a point lies at "
                f"{flops / 1e6:,.4g}; give a longer curve, or `clamp=True` to its ends."
            )
    known, heights = np.array(curve).T
    flops_of, scores = np.array(points).T
    return float(np.mean(scores - np.interp(flops_of, known, heights)))


def read_reference(file: Path) -> list[tuple[float, float]]:
    """A CSV file with the columns flops and score (0 to 1), one row per static depth."""
    if not file.is_file():
        raise BadInput(f"No file {file}.")
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
        raise BadInput(f"{file}, line {rows.line_num}: flops and score are numbers ({err}).") from err


def track(parameters: int) -> str:
    """ELUE's parameter track."""
    for most in TRACKS:
        if parameters < most * 1e6:
            return f"< {most} M"
    return f"≥ {TRACKS[-1]} M"
