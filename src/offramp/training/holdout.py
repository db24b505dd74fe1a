"""The calibration split: rows that training never sees, and the hashes that tell who was where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.errors import BadValue
from offramp.tasks import Rows
from offramp.traces.hashes import hashes_of

__all__ = ["FILE", "hold_out", "read_hashes", "write_hashes"]

FILE = "rows.safetensors"  # in the model folder: the hashes of the rows of each role
BINS = 10  # strata of a regression


def hold_out(rows: Rows, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions of rows to train on and of those held out: by seed, stratified, copies of a text together."""
    if not 0 <= share < 1:
        raise BadValue(f"The calibration split is {share}; it is a share from 0 to below 1.")
    if share == 0:
        return np.arange(len(rows)), np.empty(0, dtype=np.int64)
    _, first, which = np.unique(hashes_of(rows.texts), return_index=True, return_inverse=True)
    strata = _strata(rows, first)
    order = np.random.default_rng(seed).permutation(len(first))
    order = order[np.argsort(strata[order], kind="stable")]  # by stratum, in each at random
    steps = np.floor(np.arange(len(first) + 1) * share + 0.5)
    held = np.zeros(len(first), dtype=bool)
    held[order[np.diff(steps) > 0]] = True  # evenly through the strata
    out = held[which]
    if not out.any():
        raise BadValue(
            f"{len(first)} different texts are too few to hold out {share:.0%} for calibration; "
            "give --calibration-split 0."
        )
    return np.flatnonzero(~out), np.flatnonzero(out)


def _strata(rows: Rows, first: NDArray[np.int64]) -> NDArray[np.int64]:
    """A class per distinct text: its label's number, its value's tenth, the number of its labels."""
    labels = np.asarray(rows.labels)[first]
    if labels.ndim == 2:
        return labels.sum(1).astype(np.int64)
    if np.issubdtype(labels.dtype, np.integer):
        return labels.astype(np.int64)
    edges = np.quantile(labels, np.linspace(0, 1, BINS + 1)[1:-1])
    return np.searchsorted(edges, labels).astype(np.int64)


def write_hashes(folder: Path, roles: dict[str, NDArray[np.uint64]]) -> None:
    """Keep who was where: `train`, `calibration`, `dev`."""
    from safetensors.numpy import save_file

    save_file({role: np.unique(hashes) for role, hashes in roles.items()}, folder / FILE)


def read_hashes(folder: Path) -> dict[str, NDArray[np.uint64]]:
    """The hashes by role; nothing where the model was not trained here."""
    from safetensors.numpy import load_file

    return load_file(folder / FILE) if (folder / FILE).is_file() else {}
