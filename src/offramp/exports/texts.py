"""The texts that an export needs: some to take scales from, others to compare answers on.

Neither may be among the rows that a guarantee about the export is tested on. So where the model's training is known,
scales come from rows that were trained on and answers are compared on dev rows; the rows that training set aside stay
untouched. Of texts that the user names, hashes are kept, and calibrating leaves those out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.data.hashes import hashes_of
from offramp.data.reading import Text
from offramp.data.rows import DataOptions, TaskRows, rows_for
from offramp.data.trained import data_of_training
from offramp.errors import OfframpError
from offramp.exports.options import Texts
from offramp.model.config import AdaptiveConfig
from offramp.training.holdout import read_hashes

__all__ = ["texts_for", "unseen"]

logger = logging.getLogger("offramp")

SEED = 1
SCALES = 256  # texts that static scales and smoothing are taken from
CHECKED = 512  # texts that every exit's answers are compared on


def texts_for(name: str, config: AdaptiveConfig, given: DataOptions) -> Texts:
    """The user's own, split in two; else rows of the training; else none."""
    if given.memory or given.file is not None or given.split is not None or given.dataset is not None:
        texts = _shuffled(rows_for(name, config, given, "dev").rows.texts)
        half = max(1, len(texts) // 2)
        scales, checked = texts[:half][:SCALES], texts[half:][:CHECKED]
        return Texts(scales, checked, sorted(map(int, hashes_of([*scales, *checked]))))
    if given.data_dir is None and not data_of_training(Path(name)):
        return Texts()
    try:
        train, dev = (rows_for(name, config, given, split).rows.texts for split in ("train", "dev"))
    except OfframpError as err:
        if given != DataOptions():
            raise
        logger.warning("No texts of the training are at hand (%s)", err)
        return Texts()
    aside = read_hashes(Path(name)).get("calibration", np.empty(0, np.uint64))
    trained = [train[place] for place in np.flatnonzero(~np.isin(hashes_of(train), aside))]
    return Texts(_shuffled(trained)[:SCALES], _shuffled(dev)[:CHECKED])


def unseen(data: TaskRows, seen: Sequence[int]) -> TaskRows:
    """Rows without those that an export's scales or precision came from."""
    if not seen:
        return data
    fresh: NDArray[np.bool_] = ~np.isin(hashes_of(data.rows.texts), np.asarray(seen, dtype=np.uint64))
    if not fresh.all():
        logger.warning("%d of the rows are left out: the export was made with them.", int((~fresh).sum()))
    return data.take(np.flatnonzero(fresh))


def _shuffled(texts: Sequence[Text]) -> list[Text]:
    """Each text once, in an order that is always the same."""
    different = list(dict.fromkeys(texts))
    return [different[place] for place in np.random.default_rng(SEED).permutation(len(different))]
