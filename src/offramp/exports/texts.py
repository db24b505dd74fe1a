"""The texts of an export: for quantization scales, and for the comparison with torch.

Neither may be among the rows that test a guarantee for the export. If the training data is known, scales come from
training rows and the comparison uses dev rows; held-out rows are not used. For texts of the user, hashes are saved, and
calibration skips these texts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.data.hashes import hash_texts
from offramp.data.reading import Text
from offramp.data.rows import DataOptions, TaskRows, load_rows
from offramp.data.training_options import training_data_options
from offramp.errors import OfframpError
from offramp.exports.options import Texts
from offramp.model.config import AdaptiveConfig
from offramp.training.holdout import read_hashes

__all__ = ["ROWS_OF_EXAMPLE", "texts_for_export", "unseen_rows"]

logger = logging.getLogger("offramp")

SEED = 1
SCALES = 256  # texts for static scales and smoothing
CHECKED = 512  # texts for the comparison with torch
ROWS_OF_EXAMPLE = 8  # if an example is many rows: fewer examples, shortened to about so many


def texts_for_export(name: str, config: AdaptiveConfig, options: DataOptions) -> Texts:
    """Return the user's texts, split in two; else rows of the training run; else none."""
    if options.memory or options.file is not None or options.split is not None or options.dataset is not None:
        texts = _shuffled(load_rows(name, config, options, "dev").rows.texts)
        half = max(1, len(texts) // 2)
        many_rows = config.answer_type.compares_rows
        fraction = ROWS_OF_EXAMPLE if many_rows else 1
        scales, checked = texts[:half][: SCALES // fraction], texts[half:][: CHECKED // fraction]
        seen = sorted(map(int, hash_texts([*scales, *checked])))
        if many_rows:
            scales = config.answer_type.training_examples(scales, SCALES, SEED)
            checked = config.answer_type.training_examples(checked, CHECKED, SEED)
        return Texts(scales, checked, seen)
    if options.data_dir is None and not training_data_options(Path(name)):
        return Texts()
    try:
        train, dev = (load_rows(name, config, options, split).rows.texts for split in ("train", "dev"))
    except OfframpError as err:
        if options != DataOptions():
            raise
        logger.warning("The training data was not found (%s)", err)
        return Texts()
    held_out = read_hashes(Path(name)).get("calibration", np.empty(0, np.uint64))
    trained = [train[row] for row in np.flatnonzero(~np.isin(hash_texts(train), held_out))]
    return Texts(_shuffled(trained)[:SCALES], _shuffled(dev)[:CHECKED])


def unseen_rows(data: TaskRows, seen: Sequence[int]) -> NDArray[np.int64]:
    """Return the indices of the rows that were not used to export."""
    if not seen:
        return np.arange(len(data.rows))
    unused: NDArray[np.bool_] = ~np.isin(hash_texts(data.rows.texts), np.asarray(seen, dtype=np.uint64))
    if not unused.all():
        logger.info("Skipped %d rows that were used to export the model.", int((~unused).sum()))
    return np.flatnonzero(unused)


def _shuffled(texts: Sequence[Text]) -> list[Text]:
    """Return the distinct texts in a fixed random order."""
    distinct = list(dict.fromkeys(texts))
    return [distinct[index] for index in np.random.default_rng(SEED).permutation(len(distinct))]
