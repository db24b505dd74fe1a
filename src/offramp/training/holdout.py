"""The calibration split, which training never sees, and the file that records which rows a model was trained on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.data.hashes import hash_texts
from offramp.data.reading import Text
from offramp.data.task import Rows
from offramp.errors import BadInput, BadValue
from offramp.files.writing import apply_umask

__all__ = [
    "FILE",
    "KNOWN",
    "TRAIN_NORMALIZED",
    "UNKNOWN",
    "count_seen_in_training",
    "earlier_training_rows",
    "hold_out",
    "read_hashes",
    "write_hashes",
]

logger = logging.getLogger("offramp")

FILE = "rows.safetensors"  # in the model folder: hashes of the rows by role
ROLES = ("train", "calibration", "dev")
TRAIN_NORMALIZED = "train_normalized"  # hashes of the training texts as the tokenizer normalizes them
ADVICE = "Copy the file again: it records which rows the model was trained on."
BINS = 10  # strata for regression
KNOWN, UNKNOWN = "known", "unknown"


def hold_out(
    rows: Rows,
    fraction: float,
    seed: int,
    seen: NDArray[np.uint64] | None = None,
    normalize: Callable[[str], str] = str.strip,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the training rows and of the held-out rows: random, stratified, duplicates together.

    Questions are held out by context. Texts whose hashes are in `seen`, from earlier training, are not held out.
    Texts that `normalize` makes equal count as duplicates.
    """
    if not 0 <= fraction < 1:
        raise BadValue(f"`calibration_split` must be at least 0 and below 1, got {fraction}.")
    if fraction == 0:
        return np.arange(len(rows)), np.empty(0, dtype=np.int64)
    keys = hash_texts(rows.texts)
    if rows.ids is not None:  # questions about the same context stay together
        contexts = hash_texts([text[1] for text in rows.texts])
        seen = None if seen is None else contexts[np.isin(keys, seen) | np.isin(contexts, seen)]
        keys = contexts
    else:
        normalized = hash_texts(rows.texts, normalize)
        is_seen = np.zeros(len(keys), bool) if seen is None else np.isin(keys, seen) | np.isin(normalized, seen)
        keys = _first_of_copies(keys, normalized)
        seen = None if seen is None else keys[is_seen]
    hashes, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    strata = _strata(rows, first)
    order = np.random.default_rng(seed).permutation(len(first))
    order = order[np.argsort(strata[order], kind="stable")]  # by stratum, random within each
    if seen is not None:
        order = order[~np.isin(hashes[order], seen)]
        if not len(order):
            logger.warning(
                "All rows were used in earlier training, so none is held out for calibration; calibrate on other rows."
            )
            return np.arange(len(rows)), np.empty(0, dtype=np.int64)
        fraction = min(1.0, fraction * len(first) / len(order))
    steps = np.floor(np.arange(len(order) + 1) * fraction + 0.5)
    selected = np.zeros(len(first), dtype=bool)
    selected[order[np.diff(steps) > 0]] = True  # evenly across the strata
    held_out = selected[inverse]
    if not held_out.any():
        raise BadValue(
            f"{len(first)} different texts are too few to hold out {fraction:.0%} for calibration; "
            "use `calibration_split=0`."
        )
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _first_of_copies(keys: NDArray[np.uint64], normalized: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return keys that are equal for rows with the same normalized text; those of other rows are unchanged."""
    _, first, inverse = np.unique(normalized, return_index=True, return_inverse=True)
    return keys[first][inverse]


def _strata(rows: Rows, first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the stratum of each distinct text: its class, number of labels or entities, or decile of its value."""
    if rows.ids is not None:
        return np.zeros(len(first), dtype=np.int64)
    if rows.labels and isinstance(rows.labels[0], tuple):  # entities
        return np.fromiter(map(len, rows.labels), np.int64, len(rows))[first]
    labels = np.asarray(rows.labels)[first]
    if labels.ndim == 2:
        return labels.sum(1).astype(np.int64)
    if np.issubdtype(labels.dtype, np.integer):
        return labels.astype(np.int64)
    edges = np.quantile(labels, np.linspace(0, 1, BINS + 1)[1:-1])
    return np.searchsorted(edges, labels).astype(np.int64)


def write_hashes(folder: Path, roles: dict[str, NDArray[np.uint64]], before: str = KNOWN) -> None:
    """Write the hashes by role (train, calibration, dev), and whether they include those of all earlier training."""
    from safetensors.numpy import save_file

    hashes = {role: np.unique(hashes) for role, hashes in roles.items()}
    save_file(hashes, folder / FILE, metadata={"before": before})
    apply_umask(folder / FILE)


def count_seen_in_training(folder: Path, texts: Sequence[Text]) -> int:
    """Return how many of the texts a model was trained on, according to its folder."""
    seen = read_hashes(folder).get("train")
    return 0 if seen is None else int(np.isin(hash_texts(texts), seen).sum())


def earlier_training_rows(folder: Path) -> str:
    """Return `KNOWN` if rows.safetensors records all rows that the model was ever trained on, else `UNKNOWN`."""
    from safetensors import safe_open

    if not (folder / FILE).is_file():
        return UNKNOWN
    read_hashes(folder)  # raises if the file is damaged
    with safe_open(folder / FILE, framework="np") as file:
        return (file.metadata() or {}).get("before", KNOWN)


def read_hashes(folder: Path) -> dict[str, NDArray[np.uint64]]:
    """Return the hashes by role; empty if the folder has no record of its training rows."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = folder / FILE
    if not file.exists():
        return {}
    try:
        roles = load_file(file)
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror or err}. {ADVICE}") from err
    except (SafetensorError, KeyError) as err:  # a dtype that NumPy lacks is a KeyError
        raise BadInput(f"{file} is truncated or corrupt ({str(err).splitlines()[0]}). {ADVICE}") from err
    for role in ROLES:
        hashes = roles.get(role)
        if hashes is None or hashes.dtype != np.uint64 or hashes.ndim != 1:
            problem = "is missing" if hashes is None else f"is {hashes.dtype} of shape {hashes.shape}"
            raise BadInput(f"{file}: {role} {problem}, expected a list of hashes. {ADVICE}")
    return roles
