"""Which rows a guarantee is tested on: those that training set aside, or others that it did not see."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.data.hashes import hashes_of
from offramp.data.rows import DataOptions, TaskRows, rows_for
from offramp.errors import BadInput
from offramp.model.config import AdaptiveConfig
from offramp.training.holdout import KNOWN, earlier_rows, read_hashes

__all__ = ["rows_to_calibrate"]

logger = logging.getLogger("offramp")

SET_ASIDE = "that training did not see"
SET_ASIDE_HERE = "that this training did not see (what its backbone was fine-tuned on is not known)"
UNKNOWN = "of which it is not known whether training saw them"
KNOWN_CONTEXTS = "that training did not see, about contexts of which it saw some"
CHOSE = "that may have helped to choose the checkpoint"


def rows_to_calibrate(folder: Path, config: AdaptiveConfig, given: DataOptions) -> tuple[TaskRows, str]:
    """The rows that training set aside, or the ones named if training did not see them; and what is known of them.

    Of copies of one text the first counts alone, for a test takes rows to be independent.
    """
    roles = read_hashes(folder)
    own = given.memory is None and given.file is None and given.split is None and len(roles.get("calibration", ())) > 0
    data = rows_for(str(folder), config, given, "train" if own else "dev")
    hashes = hashes_of(data.rows.texts)
    chosen = np.isin(hashes, roles["calibration"]) if own else np.ones(len(hashes), dtype=bool)
    if not chosen.any():
        raise BadInput(
            f"None of the rows that training set aside are in {data.name}; name others with `texts=` or `split=`."
        )
    _, first = np.unique(hashes, return_index=True)
    places = np.sort(first[chosen[first]])
    data = data.take(places)
    return data, _origin(folder, data, hashes[places], roles)


def _origin(folder: Path, data: TaskRows, hashes: NDArray[np.uint64], roles: dict[str, NDArray[np.uint64]]) -> str:
    if not roles:
        logger.warning("%s does not say what it was trained on: make sure that these rows were not.", folder)
        return UNKNOWN
    seen = np.isin(hashes, roles.get("train", ()))
    if seen.any():
        first = data.rows.texts[int(seen.argmax())]
        raise BadInput(
            f"{int(seen.sum()):,} of the {len(hashes):,} rows were trained on, the first is {first!r:.60}: "
            "a guarantee about them says nothing. Leave them out, or use the rows that training set aside."
        )
    shared = data.task.answer_type.shared_texts(data.rows.texts)
    if shared and np.isin(hashes_of(shared), roles.get("train", ())).any():
        logger.warning(
            "Some of the questions are about contexts that were trained on: the guarantee is a little too rosy."
        )
        return KNOWN_CONTEXTS
    used = np.isin(hashes, roles.get("dev", ()))
    if not used.any():
        return SET_ASIDE if earlier_rows(folder) == KNOWN else SET_ASIDE_HERE
    logger.warning(
        "%d of the %d rows may have helped to choose the checkpoint: the guarantee is a little too rosy.",
        int(used.sum()),
        len(hashes),
    )
    return CHOSE
