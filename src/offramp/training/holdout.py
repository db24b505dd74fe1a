"""The calibration split: rows that training never sees, and the hashes that tell who was where."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.data.hashes import hashes_of
from offramp.data.reading import Text
from offramp.data.task import Rows
from offramp.errors import BadInput, BadValue
from offramp.files.writing import apply_umask

__all__ = ["FILE", "KNOWN", "UNKNOWN", "earlier_rows", "hold_out", "read_hashes", "seen_in_training", "write_hashes"]

logger = logging.getLogger("offramp")

FILE = "rows.safetensors"  # in the model folder: the hashes of the rows of each role
ROLES = ("train", "calibration", "dev")
MEND = "Copy it again; without it nobody knows which rows were trained on."
BINS = 10  # strata of a regression
KNOWN, UNKNOWN = "known", "unknown"


def hold_out(
    rows: Rows, share: float, seed: int, seen: NDArray[np.uint64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions of rows to train on and of those held out: by seed, stratified, copies of a text together.

    Of questions whole contexts are held out. Texts that were `seen` in an earlier training are not held out.
    """
    if not 0 <= share < 1:
        raise BadValue(f"The calibration split is {share}; it is a share from 0 to below 1.")
    if share == 0:
        return np.arange(len(rows)), np.empty(0, dtype=np.int64)
    keys = hashes_of(rows.texts)
    if rows.ids is not None:  # questions about one context stay together
        contexts = hashes_of([text[1] for text in rows.texts])
        seen = None if seen is None else contexts[np.isin(keys, seen) | np.isin(contexts, seen)]
        keys = contexts
    hashes, first, which = np.unique(keys, return_index=True, return_inverse=True)
    strata = _strata(rows, first)
    order = np.random.default_rng(seed).permutation(len(first))
    order = order[np.argsort(strata[order], kind="stable")]  # by stratum, in each at random
    if seen is not None:
        order = order[~np.isin(hashes[order], seen)]
        if not len(order):
            logger.warning("Every row was trained on before: none can be set aside for calibration.")
            return np.arange(len(rows)), np.empty(0, dtype=np.int64)
        share = min(1.0, share * len(first) / len(order))
    steps = np.floor(np.arange(len(order) + 1) * share + 0.5)
    held = np.zeros(len(first), dtype=bool)
    held[order[np.diff(steps) > 0]] = True  # evenly through the strata
    out = held[which]
    if not out.any():
        raise BadValue(
            f"{len(first)} different texts are too few to hold out {share:.0%} for calibration; "
            "give `calibration_split=0`."
        )
    return np.flatnonzero(~out), np.flatnonzero(out)


def _strata(rows: Rows, first: NDArray[np.int64]) -> NDArray[np.int64]:
    """A class per distinct text: its label's number, its value's tenth, the number of its labels; contexts have one."""
    if rows.ids is not None:
        return np.zeros(len(first), dtype=np.int64)
    labels = np.asarray(rows.labels)[first]
    if labels.ndim == 2:
        return labels.sum(1).astype(np.int64)
    if np.issubdtype(labels.dtype, np.integer):
        return labels.astype(np.int64)
    edges = np.quantile(labels, np.linspace(0, 1, BINS + 1)[1:-1])
    return np.searchsorted(edges, labels).astype(np.int64)


def write_hashes(folder: Path, roles: dict[str, NDArray[np.uint64]], before: str = KNOWN) -> None:
    """Keep who was where, `train`, `calibration`, `dev`, and whether the rows of earlier trainings are among them."""
    from safetensors.numpy import save_file

    hashes = {role: np.unique(hashes) for role, hashes in roles.items()}
    save_file(hashes, folder / FILE, metadata={"before": before})
    apply_umask(folder / FILE)


def seen_in_training(folder: Path, texts: Sequence[Text]) -> int:
    """How many of some texts a model was trained on, as far as its folder knows."""
    seen = read_hashes(folder).get("train")
    return 0 if seen is None else int(np.isin(hashes_of(texts), seen).sum())


def earlier_rows(folder: Path) -> str:
    """Whether a model's rows.safetensors holds all rows that were ever trained on: known, or unknown."""
    from safetensors import safe_open

    if not (folder / FILE).is_file():
        return UNKNOWN
    read_hashes(folder)  # says what is wrong with it
    with safe_open(folder / FILE, framework="np") as file:
        return (file.metadata() or {}).get("before", KNOWN)


def read_hashes(folder: Path) -> dict[str, NDArray[np.uint64]]:
    """The hashes by role; nothing where the model was not trained here."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = folder / FILE
    if not file.exists():
        return {}
    try:
        roles = load_file(file)
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror or err}. {MEND}") from err
    except (SafetensorError, KeyError) as err:  # a type that NumPy has not is a KeyError
        raise BadInput(f"{file} is truncated or corrupt ({str(err).splitlines()[0]}). {MEND}") from err
    for role in ROLES:
        hashes = roles.get(role)
        if hashes is None or hashes.dtype != np.uint64 or hashes.ndim != 1:
            is_now = "is not there" if hashes is None else f"is {hashes.dtype} of shape {hashes.shape}"
            raise BadInput(f"{file}: {role} {is_now}; it is a list of hashes. {MEND}")
    return roles
