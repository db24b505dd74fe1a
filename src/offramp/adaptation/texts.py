"""The user's texts, without duplicates, split by their hashes into three parts."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.bounds import rows_needed
from offramp.calibration.risks import Guarantee
from offramp.data.hashes import hash_texts
from offramp.data.reading import Text
from offramp.data.rows import TaskRows, model_task
from offramp.data.task import Rows
from offramp.errors import BadInput
from offramp.model.config import AdaptiveConfig

__all__ = ["TextSplits", "split_texts", "unlabelled_rows"]

logger = logging.getLogger("offramp")

# fraction for the test of the guarantee and for the selection of exits; a larger fraction of few texts, up to a count
TEST_FRACTION, TEST_FRACTION_IF_FEW, TEST_TARGET = 0.2, 0.3, 1000
SELECTION_FRACTION, SELECTION_FRACTION_IF_FEW, SELECTION_TARGET = 0.1, 0.2, 500
MIN_TEXTS = 100


@dataclass(frozen=True)
class TextSplits:
    """Texts to train the exits, to select exits and thresholds, and to test the guarantee."""

    training: list[Text]
    selection: list[Text]
    test: list[Text]

    def describe(self) -> str:
        """Return the number of texts per split."""
        return (
            f"{len(self.training):,} texts to train the exits, {len(self.selection):,} to select exits and thresholds, "
            f"{len(self.test):,} to test the guarantee"
        )


def split_texts(texts: list[Text], guarantee: Guarantee, seen: NDArray[np.uint64]) -> TextSplits:
    """Split the texts; those whose hashes are in `seen`, because the model was trained on them, go to training."""
    hashes = hash_texts(texts)
    _, first = np.unique(hashes, return_index=True)
    if duplicates := len(texts) - len(first):
        logger.info("Ignored %d of %d texts, which are duplicates.", duplicates, len(texts))
    indices = np.sort(first)
    hashes = hashes[indices]
    is_seen = np.isin(hashes, seen)
    if is_seen.any():
        logger.info(
            "The model was trained on %d of the texts: they are used for training only, not for the test.",
            is_seen.sum(),
        )
    unseen = int((~is_seen).sum())
    _check_enough(unseen, guarantee)
    keys = np.where(is_seen, np.uint64(2**64 - 1), _mix(hashes))
    rank = np.argsort(np.argsort(keys, kind="stable"), kind="stable")
    num_test = int(_count(unseen, TEST_FRACTION, TEST_FRACTION_IF_FEW, TEST_TARGET))
    num_selection = int(_count(unseen, SELECTION_FRACTION, SELECTION_FRACTION_IF_FEW, SELECTION_TARGET))
    split = np.where(is_seen | (rank >= num_test + num_selection), 0, np.where(rank < num_test, 2, 1))
    return TextSplits(*([texts[index] for index in indices[split == number]] for number in range(3)))


def _mix(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return other hashes, so that the split is independent of other splits by hash."""
    with np.errstate(over="ignore"):
        mixed: NDArray[np.uint64] = (hashes ^ (hashes >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    return mixed


def _count(total: int, fraction: float, fraction_of_few: float, enough: int) -> float:
    return max(fraction * total, min(enough, fraction_of_few * total))


def _check_enough(count: int, guarantee: Guarantee) -> None:
    needed = rows_needed(guarantee.p_value, guarantee.level)
    fraction = TEST_FRACTION_IF_FEW if needed is None or needed <= TEST_TARGET else TEST_FRACTION
    total = MIN_TEXTS if needed is None else max(MIN_TEXTS, int(np.ceil(needed / fraction)))
    if needed is None or count < total:
        minimum = f"at least {total:,}" if needed is not None else "more than a million"
        raise BadInput(
            f"{count:,} different texts are too few: a risk of {100 * guarantee.risk:g} % at "
            f"{100 * guarantee.confidence:g} % confidence needs {minimum}, and more texts are better."
        )


def unlabelled_rows(config: AdaptiveConfig, texts: list[Text], name: str) -> TaskRows:
    """Return texts without labels as rows of the model's task."""
    return TaskRows(name, model_task(config, (config.answer_type.metric,)), Rows(texts, None))
