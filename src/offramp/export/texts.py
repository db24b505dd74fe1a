"""The texts that an export needs: some to take scales from, others to compare answers on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.batching import Text
from offramp.config import AdaptiveConfig
from offramp.export.making import Texts
from offramp.files.trained import data_of_training
from offramp.tasks.rows import DataOptions, rows_for
from offramp.traces.hashes import hashes_of
from offramp.training.holdout import read_hashes

__all__ = ["texts_for"]

SEED = 1
SCALES = 256  # texts that static scales and smoothing are taken from
CHECKED = 512  # texts that every exit's answers are compared on


def texts_for(name: str, config: AdaptiveConfig, given: DataOptions) -> Texts:
    """The user's own, split in two; else trained rows for scales and set-aside ones to compare on; else none."""
    folder = Path(name)
    named = any([given.file, given.data_dir, given.dataset])
    if not named and not data_of_training(folder):
        return Texts()
    roles = read_hashes(folder)
    own = given.file is None and given.split is None and len(roles.get("calibration", ())) > 0
    data = rows_for(name, config, given, "train" if own else "dev")
    hashes = hashes_of(data.rows.texts)
    _, first = np.unique(hashes, return_index=True)
    first = np.random.default_rng(SEED).permutation(np.sort(first))
    if own:
        aside = np.isin(hashes[first], roles["calibration"])
        trained, kept = first[~aside], first[aside]
    else:
        half = max(1, len(first) // 2)
        trained, kept = first[:half], first[half:]
    texts = data.rows.texts
    return Texts(_taken(texts, trained[:SCALES]), _taken(texts, kept[:CHECKED]))


def _taken(texts: list[Text], places: NDArray[np.int64]) -> list[Text]:
    return [texts[place] for place in places]
