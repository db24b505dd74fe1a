"""Which rows a promise is tested on: those that training set aside, or others that it did not see."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from offramp.errors import BadInput
from offramp.hashes import hashes_of
from offramp.model import AdaptiveModel
from offramp.questions import Given, Questions, ask
from offramp.training.holdout import read_hashes

__all__ = ["rows_to_calibrate"]

logger = logging.getLogger("offramp")


def rows_to_calibrate(folder: Path, model: AdaptiveModel, given: Given) -> Questions:
    """The rows that training set aside; or the ones named, if training did not see them."""
    roles = read_hashes(folder)
    own = given.file is None and given.split is None and len(roles.get("calibration", ())) > 0
    questions = ask(str(folder), model.config, given, "train" if own else "dev")
    hashes = hashes_of(questions.rows.texts)
    if own:
        places = np.flatnonzero(np.isin(hashes, roles["calibration"]))
        if not len(places):
            raise BadInput(
                f"None of the rows that training set aside are in {questions.name}; name others with --file or --split."
            )
        return questions.take(places)
    if not roles:
        logger.warning("%s does not say what it was trained on: make sure that these rows were not.", folder)
    seen = np.isin(hashes, roles.get("train", ()))
    if seen.any():
        first = questions.rows.texts[int(seen.argmax())]
        raise BadInput(
            f"{int(seen.sum()):,} of the {len(hashes):,} rows were trained on, the first is {first!r:.60}: "
            "a promise about them says nothing. Leave them out, or use the rows that training set aside."
        )
    used = np.isin(hashes, roles.get("dev", ()))
    if used.any():
        logger.warning(
            "%d of the %d rows may have helped to choose the checkpoint: the promise is a little too rosy.",
            int(used.sum()),
            len(hashes),
        )
    return questions
