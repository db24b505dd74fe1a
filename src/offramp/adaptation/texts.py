"""The user's texts: read once, copies left out, split by their hashes into three parts."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.bounds import rows_needed
from offramp.calibration.risks import Guarantee
from offramp.data.hashes import hashes_of
from offramp.data.reading import Text
from offramp.data.rows import TaskRows, task_of_model
from offramp.data.task import Rows
from offramp.errors import BadInput
from offramp.model.config import AdaptiveConfig

__all__ = ["Parts", "split_texts", "task_of"]

logger = logging.getLogger("offramp")

# what the test of the guarantee gets, and the choice of exits: a share, but of few texts more
TEST, TEST_OF_FEW, TEST_ENOUGH = 0.2, 0.3, 1000
CHOICE, CHOICE_OF_FEW, CHOICE_ENOUGH = 0.1, 0.2, 500
FEWEST = 100  # texts that exits can learn anything from


@dataclass(frozen=True)
class Parts:
    """Texts that exits learn from, that exits and thresholds are chosen on, that the guarantee is tested on."""

    training: list[Text]
    choice: list[Text]
    test: list[Text]

    def told(self) -> str:
        """How many."""
        return (
            f"{len(self.training):,} texts to learn from, {len(self.choice):,} to choose exits and thresholds on, "
            f"{len(self.test):,} to test the guarantee on"
        )


def split_texts(texts: list[Text], guarantee: Guarantee, seen: NDArray[np.uint64]) -> Parts:
    """Texts in three parts; those that the model was trained on, as far as known, are only learnt from."""
    hashes = hashes_of(texts)
    _, first = np.unique(hashes, return_index=True)
    if copies := len(texts) - len(first):
        logger.warning("%d of %d texts are copies of others and left out.", copies, len(texts))
    places = np.sort(first)
    hashes = hashes[places]
    known = np.isin(hashes, seen)
    if known.any():
        logger.warning(
            "%d of the texts were trained on: they are learnt from, and nothing is tested on them.", known.sum()
        )
    fresh = int((~known).sum())
    _check_enough(fresh, guarantee)
    rank = np.argsort(np.argsort(np.where(known, np.uint64(2**64 - 1), _mixed(hashes)), kind="stable"), kind="stable")
    tested = int(_share(fresh, TEST, TEST_OF_FEW, TEST_ENOUGH))
    chosen = int(_share(fresh, CHOICE, CHOICE_OF_FEW, CHOICE_ENOUGH))
    role = np.where(known | (rank >= tested + chosen), 0, np.where(rank < tested, 2, 1))
    each = [[texts[place] for place in places[role == number]] for number in range(3)]
    return Parts(*each)


def _mixed(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Another order than that of the hashes, which other splits are made by."""
    with np.errstate(over="ignore"):
        mixed: NDArray[np.uint64] = (hashes ^ (hashes >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    return mixed


def _share(count: int, usual: float, of_few: float, enough: int) -> float:
    """A share of many; of few a larger one."""
    return max(usual * count, min(enough, of_few * count))


def _check_enough(count: int, guarantee: Guarantee) -> None:
    need = rows_needed(guarantee.p_value, guarantee.level)
    share = TEST_OF_FEW if need is None or need <= TEST_ENOUGH else TEST
    total = FEWEST if need is None else max(FEWEST, int(np.ceil(need / share)))
    if need is None or count < total:
        takes = f"{total:,}" if need is not None else "more than a million"
        raise BadInput(
            f"{count:,} different texts are too few: at most {100 * guarantee.risk:g} % at "
            f"{100 * guarantee.confidence:g} % confidence takes at least {takes}, and more is better."
        )


def task_of(config: AdaptiveConfig, texts: list[Text], name: str) -> TaskRows:
    """Texts without labels as rows of the model's kind of answer."""
    return TaskRows(name, task_of_model(config, (config.answer_type.metric,)), Rows(texts, None))
