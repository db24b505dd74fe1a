"""The rows to calibrate on: those that training held out, or other rows that training did not see."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.data.hashes import hash_texts
from offramp.data.rows import DataOptions, TaskRows, load_rows
from offramp.errors import BadInput
from offramp.model.config import AdaptiveConfig
from offramp.training.holdout import KNOWN, earlier_training_rows, read_hashes

__all__ = ["rows_to_calibrate"]

logger = logging.getLogger("offramp")

# follow "tested on 480 rows" in the sentence of a guarantee
HELD_OUT = "held out from training"
HELD_OUT_HERE = "held out from this training; what its backbone was fine-tuned on is not known"
UNKNOWN = "that may have been used for training; the model does not record its training rows"
SEEN_CONTEXTS = "held out from training, some with contexts that training saw"
SELECTION = "that may have been used to select the checkpoint"


def rows_to_calibrate(folder: Path, config: AdaptiveConfig, options: DataOptions) -> tuple[TaskRows, str]:
    """Return the rows that training held out, or the requested rows if training did not see them; and their origin.

    Duplicate texts are dropped, because the tests assume independent rows.
    """
    roles = read_hashes(folder)
    is_default = options.memory is None and options.file is None and options.split is None
    held_out = is_default and len(roles.get("calibration", ())) > 0
    data = load_rows(str(folder), config, options, "train" if held_out else "dev")
    hashes = hash_texts(data.rows.texts)
    chosen = np.isin(hashes, roles["calibration"]) if held_out else np.ones(len(hashes), dtype=bool)
    if not chosen.any():
        raise BadInput(
            f"{data.name} has none of the rows that training held out; choose other rows with `texts=` or `split=`."
        )
    _, first = np.unique(hashes, return_index=True)
    indices = np.sort(first[chosen[first]])
    data = data.take(indices)
    return data, _origin(folder, data, hashes[indices], roles)


def _origin(folder: Path, data: TaskRows, hashes: NDArray[np.uint64], roles: dict[str, NDArray[np.uint64]]) -> str:
    if not roles:
        logger.warning("%s does not record its training rows: make sure that it was not trained on these.", folder)
        return UNKNOWN
    seen = np.isin(hashes, roles.get("train", ()))
    if seen.any():
        first = data.rows.texts[int(seen.argmax())]
        raise BadInput(
            f"{int(seen.sum()):,} of the {len(hashes):,} rows were used for training, such as {first!r:.60}. "
            "Calibrate on other rows, or on those that training held out."
        )
    shared = data.task.answer_type.shared_texts(data.rows.texts)
    if shared and np.isin(hash_texts(shared), roles.get("train", ())).any():
        logger.warning("Some questions are about contexts that were used for training: the guarantee is optimistic.")
        return SEEN_CONTEXTS
    used = np.isin(hashes, roles.get("dev", ()))
    if not used.any():
        return HELD_OUT if earlier_training_rows(folder) == KNOWN else HELD_OUT_HERE
    logger.warning(
        "%d of the %d rows may have been used to select the checkpoint: the guarantee is optimistic.",
        int(used.sum()),
        len(hashes),
    )
    return SELECTION
