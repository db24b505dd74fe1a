"""The user's texts, split into three parts: to train the exits, to select exits, and to test the guarantee.

Rows are split as they come, so that the tested rows are a sample of the user's traffic in which frequent texts recur;
the exits learn from every text once. With `count="texts"` every text counts once everywhere. Groups of rows (documents,
customers) are never divided. The split is an order by hash: the same rows always go to the same part, but rows that
tested a guarantee before are replaced by others.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.ledger import TestRecord, count_tested
from offramp.calibration.risks import Guarantee
from offramp.calibration.rows import number_groups
from offramp.data.hashes import hash_texts, mix, occurrences, row_keys
from offramp.data.near_copies import near_copies
from offramp.data.reading import Text
from offramp.data.rows import TaskRows, model_task
from offramp.data.task import Rows
from offramp.errors import BadInput
from offramp.model.config import AdaptiveConfig

__all__ = ["TextSplits", "UserTexts", "split_texts", "unlabelled_rows"]

logger = logging.getLogger("offramp")

# fraction for the test of the guarantee and for the selection of exits; a larger fraction of few texts, up to a count
TEST_FRACTION, TEST_FRACTION_IF_FEW, TEST_TARGET = 0.2, 0.3, 1000
SELECTION_FRACTION, SELECTION_FRACTION_IF_FEW, SELECTION_TARGET = 0.1, 0.2, 500
MIN_TEXTS = 100
NEAR_COPIES = 0.02  # fraction of the test rows from which near-copies are reported
TRAINING, SELECTION, TEST = range(3)


@dataclass(frozen=True)
class UserTexts:
    """Texts with their hashes; groups are None unless rows are grouped."""

    texts: Sequence[Text]
    groups: Sequence[str] | None
    normalize: Callable[[str], str] = str.strip
    identify: Callable[[Any], Text] = lambda text: text  # what makes a text the same as another
    noun: str = "texts"  # in messages

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: NDArray[np.int64]) -> UserTexts:
        """Return some of the texts."""
        groups = None if self.groups is None else [self.groups[index] for index in indices]
        return replace(self, texts=[self.texts[index] for index in indices], groups=groups)

    @property
    def identities(self) -> list[Text]:
        """What identifies each text: the text itself, or for a ranking its query."""
        return [self.identify(text) for text in self.texts]


@dataclass(frozen=True)
class TextSplits:
    """Texts to train the exits, to select exits and thresholds, and to test the guarantee."""

    training: list[Text]
    selection: list[Text]
    test: list[Text]
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))  # of the test rows
    clusters: NDArray[np.int64] | None = None  # the group of each test text
    has_copies: bool = False  # rows repeat texts
    noun: str = "texts"  # in messages

    def describe(self) -> str:
        """Return the number of texts per split."""
        return (
            f"{len(self.training):,} {self.noun} to train the exits, {len(self.selection):,} to select exits and "
            f"thresholds, {len(self.test):,} to test the guarantee"
        )


def split_texts(
    texts: UserTexts,
    guarantee: Guarantee,
    seen: NDArray[np.uint64],
    earlier: Sequence[TestRecord] = (),
) -> TextSplits:
    """Split the texts; those whose hashes are in `seen`, because the model was trained on them, go to training.

    `earlier` are tests that were made before; if they tested these texts, other texts are taken for the test.
    """
    texts, hashes, distinct = _count_copies(texts, guarantee)
    is_seen = np.isin(hash_texts(texts.texts), seen) | np.isin(hashes, seen)
    if is_seen.any():
        logger.info(
            "The model was trained on %d of the %s: they are used for training only, not for the test.",
            is_seen.sum(),
            texts.noun,
        )
    clusters = None if texts.groups is None else number_groups(texts.groups)
    units = np.arange(len(texts)) if clusters is None else clusters
    usable = np.setdiff1d(units, units[is_seen])
    _check_enough(int(np.isin(units, usable).sum()), distinct, len(usable), guarantee, texts.noun)
    keys = row_keys(hashes)
    tested = count_tested(earlier, keys)
    parts = _parts(_unit_keys(keys, texts.groups, units), units, usable, tested)
    _report_tested(tested, parts == TEST, texts.noun)
    test = np.flatnonzero(parts == TEST)
    training = np.flatnonzero(parts == TRAINING)
    training = training[occurrences(hashes[training]) == 0]
    splits = TextSplits(
        list(texts.take(training).texts),
        list(texts.take(np.flatnonzero(parts == SELECTION)).texts),
        list(texts.take(test).texts),
        keys[test],
        None if clusters is None else number_groups(clusters[test]),
        distinct < len(texts),
        texts.noun,
    )
    if not splits.training or not splits.selection or not splits.test:
        raise BadInput("The groups are too large to split: training, selection and test need at least one each.")
    _report_near_copies(splits, hashes[test], set(hashes[parts != TEST].tolist()), texts.identify)
    return splits


def _count_copies(texts: UserTexts, guarantee: Guarantee) -> tuple[UserTexts, NDArray[np.uint64], int]:
    """Return the rows to split, their hashes, and the number of unique texts."""
    hashes = hash_texts(texts.identities, texts.normalize)
    distinct = len(np.unique(hashes))
    copies = len(texts) - distinct
    if copies and guarantee.count == "texts":
        logger.info("Ignored %d of %d %s, which are duplicates.", copies, len(texts), texts.noun)
        kept = np.flatnonzero(occurrences(hashes) == 0)
        return texts.take(kept), hashes[kept], distinct
    if copies:
        logger.info(
            "%d of %d %s are repeated: the exits learn from each once, and the guarantee counts every one.",
            copies,
            len(texts),
            texts.noun,
        )
    return texts, hashes, distinct


def _report_tested(tested: NDArray[np.int64], is_test: NDArray[np.bool_], noun: str) -> None:
    """Report whether rows were tested before; `tested` has the number of earlier tests of every row."""
    if repeated := int((tested[is_test] > 0).sum()):
        logger.warning("%d of the test rows were tested before; give more %s.", repeated, noun)
    elif tested.any():
        logger.info("Some of these %s tested a guarantee before: other rows are taken.", noun)


def _unit_keys(keys: NDArray[np.uint64], groups: Sequence[str] | None, units: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a key per row (or group) for the order of the split."""
    if groups is None:
        return mix(keys)
    _, first = np.unique(units, return_index=True)
    return mix(hash_texts([groups[row] for row in first]))


def _parts(
    keys: NDArray[np.uint64], units: NDArray[np.int64], usable: NDArray[np.int64], tested: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the part of each row; only rows of the usable units are selection or test rows.

    The test rows are a part of the order by key: the first, or the one with the fewest rows that were tested before.
    """
    sizes = np.bincount(units, minlength=len(keys))
    order = usable[np.argsort(keys[usable], kind="stable")]
    total = int(sizes[order].sum())
    num_test = int(_count(total, TEST_FRACTION, TEST_FRACTION_IF_FEW, TEST_TARGET))
    num_selection = int(_count(total, SELECTION_FRACTION, SELECTION_FRACTION_IF_FEW, SELECTION_TARGET))
    tests_of_unit = np.bincount(units, tested, minlength=len(keys))
    best = order
    for start in range(0, max(total - num_test, 0) + 1, max(num_test, 1)) if tested.any() else ():
        rotated = np.roll(order, -int(np.searchsorted(np.cumsum(sizes[order]) - sizes[order], start)))
        if _tested_before(rotated, sizes, tests_of_unit, num_test) < _tested_before(
            best, sizes, tests_of_unit, num_test
        ):
            best = rotated
    before = np.cumsum(sizes[best]) - sizes[best]  # rows before each unit
    is_test = before < num_test
    is_selection = ~is_test & (before < sizes[best][is_test].sum() + num_selection)
    part_of_unit = np.full(len(keys), TRAINING)
    part_of_unit[best] = np.where(is_test, TEST, np.where(is_selection, SELECTION, TRAINING))
    return part_of_unit[units]


def _tested_before(order: NDArray[np.int64], sizes: NDArray[np.int64], tests: NDArray[Any], num_test: int) -> float:
    """Return how often the test rows of an order were tested before."""
    return float(tests[order][np.cumsum(sizes[order]) - sizes[order] < num_test].sum())


def _report_near_copies(
    splits: TextSplits, hashes: NDArray[np.uint64], other_hashes: set[int], identify: Callable[[Any], Text]
) -> None:
    """Report test rows that are nearly the same as texts of the other parts; exact copies are expected in traffic."""
    rows = [row for row, value in enumerate(hashes.tolist()) if value not in other_hashes]
    if splits.clusters is not None or not rows:
        return
    others = [identify(text) for text in (*splits.training, *splits.selection)]
    copies = near_copies([identify(splits.test[row]) for row in rows], others)
    if copies.sum() < NEAR_COPIES * len(splits.test):
        return
    logger.warning(
        "%d of the %d test %s are near-copies of training %s, such as %r. If %s come in groups (documents, "
        "customers), name them with `group_column=`; otherwise the guarantee may be optimistic.",
        int(copies.sum()),
        len(splits.test),
        *([splits.noun] * 2),
        _excerpt(identify(splits.test[rows[int(copies.argmax())]])),
        splits.noun,
    )


def _excerpt(text: Text) -> str:
    """Return the beginning of a text, or of the first text of several."""
    return textwrap.shorten(text if isinstance(text, str) else text[0], 60, placeholder=" …")


def _count(total: int, fraction: float, fraction_of_few: float, enough: int) -> float:
    return max(fraction * total, min(enough, fraction_of_few * total))


def _check_enough(rows: int, distinct: int, units: int, guarantee: Guarantee, noun: str) -> None:
    """Raise if there are too few different texts to learn from, or too few rows or groups for the test."""
    needed = guarantee.rows_needed
    fraction = TEST_FRACTION_IF_FEW if needed is None or needed <= TEST_TARGET else TEST_FRACTION
    total = MIN_TEXTS if needed is None else max(MIN_TEXTS, int(np.ceil(needed / fraction)))
    minimum = f"at least {total:,}" if needed is not None else "more than a million"
    goal = f"a risk of {100 * guarantee.risk:g} % at {100 * guarantee.confidence:g} % confidence needs {minimum}"
    if guarantee.group and (needed is None or units < total):
        raise BadInput(f"{units:,} groups are too few: {goal}, and more are better.")
    if needed is None or (min(rows, distinct) < total and (rows < total or distinct < MIN_TEXTS)):
        raise BadInput(f"{min(rows, distinct):,} different {noun} are too few: {goal}, and more {noun} are better.")


def unlabelled_rows(config: AdaptiveConfig, texts: list[Text], name: str) -> TaskRows:
    """Return texts without labels as rows of the model's task."""
    return TaskRows(name, model_task(config, (config.answer_type.metric,)), Rows(texts, None))
