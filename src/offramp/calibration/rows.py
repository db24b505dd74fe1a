"""The rows to calibrate on: those that training held out, or other rows that training did not see."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from offramp.calibration.ledger import LEDGER, TestRecord, describe_earlier_tests, read_tests
from offramp.calibration.risks import COUNTS, Guarantee
from offramp.data.hashes import hash_texts, normalizer, row_keys
from offramp.data.rows import DataOptions, TaskRows, load_rows
from offramp.errors import BadInput, BadValue, UnknownName
from offramp.model.config import AdaptiveConfig
from offramp.training.holdout import KNOWN, TRAIN_NORMALIZED, earlier_training_rows, read_hashes

__all__ = ["CalibrationRows", "RowOptions", "number_groups", "rows_to_calibrate"]

logger = logging.getLogger("offramp")

# follow "on texts like those tested: 480 rows" in the sentence of a guarantee
HELD_OUT = "held out from training"
MAX_RECURRING = 0.9  # fraction of rows with training texts that a new sample of traffic may have
NOT_TRAINED_ON = "that the model was not trained on"
HELD_OUT_HERE = "held out from this training; what its backbone was fine-tuned on is not known"
UNKNOWN = "that may have been used for training; the model does not record its training rows"
SEEN_CONTEXTS = "held out from training, some with contexts that training saw"
SELECTION = "that may have been used to select the checkpoint"


@dataclass(frozen=True)
class RowOptions:
    """How rows are counted, and where tests are recorded."""

    count: str | None = None  # rows as they come, or unique texts; None: rows, but texts for held-out rows
    ledger: str | None = None  # file that records tests; None: in the model folder

    def __post_init__(self) -> None:
        if self.count is not None and self.count not in COUNTS:
            raise UnknownName("count", self.count, COUNTS)

    def ledger_file(self, folder: Path) -> Path:
        """Return the file that records tests."""
        return folder / LEDGER if self.ledger is None else Path(self.ledger)


@dataclass(frozen=True)
class CalibrationRows:
    """Rows to test a guarantee on."""

    data: TaskRows
    origin: str  # follows "480 rows"
    count: str  # what the guarantee counts: "rows" or "texts"
    keys: NDArray[np.uint64]  # of the rows, from their normalized texts
    group: str | None = None  # what the rows are grouped by
    clusters: NDArray[np.int64] | None = None  # the number of the group of each row
    earlier: tuple[TestRecord, ...] = ()  # tests so far

    def take(self, indices: NDArray[np.int64]) -> CalibrationRows:
        """Return some of the rows."""
        clusters = None if self.clusters is None else number_groups(self.clusters[indices])
        return replace(self, data=self.data.take(indices), keys=self.keys[indices], clusters=clusters)

    def apply_to(self, guarantee: Guarantee) -> Guarantee:
        """Return the guarantee with how these rows are counted and grouped."""
        is_default = guarantee.test == "binomial" and self.group is not None and guarantee.risk_type == "disagreement"
        test = "auto" if is_default else guarantee.test
        return replace(guarantee, count=self.count, group=self.group, test=test)

    @property
    def described_origin(self) -> str:
        """The origin, with the number of rows that were tested before."""
        earlier = describe_earlier_tests(self.earlier, self.keys)
        return self.origin if earlier is None else f"{self.origin}; {earlier}"

    @property
    def are_fresh(self) -> bool:
        """Whether none of the rows was tested before, as far as earlier tests are recorded."""
        return bool(self.earlier) and describe_earlier_tests(self.earlier, self.keys) is None


def number_groups(groups: Iterable[Any]) -> NDArray[np.int64]:
    """Return the number of each row's group, from 0."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups], dtype=np.int64)


def rows_to_calibrate(
    folder: Path,
    config: AdaptiveConfig,
    tokenizer: PreTrainedTokenizerBase,
    options: DataOptions,
    row_options: RowOptions | None = None,
) -> CalibrationRows:
    """Return the rows that training held out, or the requested rows if training did not see them.

    Rows count as they come. Held-out rows are unique texts, because training holds out texts, not rows.
    """
    row_options = row_options or RowOptions()
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
    if held_out and row_options.count == "rows":
        raise BadValue("The rows that training held out are unique texts; remove `count=`, or pass rows with `texts=`.")
    count = row_options.count or ("texts" if held_out else "rows")
    normalized = hash_texts(data.rows.texts, normalizer(tokenizer))
    indices = np.flatnonzero(chosen)
    if count == "texts":
        _, first = np.unique(normalized[indices], return_index=True)
        indices = np.sort(indices[first])
    data = data.take(indices)
    origin = _origin(folder, data, hashes[indices], normalized[indices], roles, row_options.count == "rows")
    group, clusters = _clusters(data, options)
    earlier = tuple(read_tests(row_options.ledger_file(folder)))
    return CalibrationRows(data, origin, count, row_keys(normalized)[indices], group, clusters, earlier)


def _clusters(data: TaskRows, options: DataOptions) -> tuple[str | None, NDArray[np.int64] | None]:
    """Return what rows are grouped by, and the number of each row's group."""
    if data.rows.groups is not None:
        return options.group_column or "group", number_groups(data.rows.groups)
    shared = data.task.answer_type.shared_texts(data.rows.texts)
    return ("context", number_groups(shared)) if shared else (None, None)


def _origin(
    folder: Path,
    data: TaskRows,
    hashes: NDArray[np.uint64],
    normalized: NDArray[np.uint64],
    roles: dict[str, NDArray[np.uint64]],
    may_recur: bool,
) -> str:
    if not roles:
        logger.warning("%s does not record its training rows: make sure that it was not trained on these.", folder)
        return UNKNOWN
    seen = np.isin(hashes, roles.get("train", ())) | np.isin(normalized, roles.get(TRAIN_NORMALIZED, ()))
    recurring = ""
    if seen.any():
        first = data.task.answer_type.identify(data.rows.texts[int(seen.argmax())])
        number = f"{int(seen.sum()):,}"
        if not may_recur or seen.mean() > MAX_RECURRING:
            raise BadInput(
                f"{number} of the {len(hashes):,} rows were used for training, such as {first!r:.60}. Calibrate on "
                "other rows, or on those that training held out. If these rows are a new sample of traffic in which "
                "texts recur, use `count='rows'`."
            )
        recurring = f"; the texts of {number} of the {len(hashes):,} rows also occur in the training data"
    shared = data.task.answer_type.shared_texts(data.rows.texts)
    if shared and np.isin(hash_texts(shared), roles.get("train", ())).any():
        logger.warning("Some questions are about contexts that were used for training: the guarantee is optimistic.")
        return SEEN_CONTEXTS
    used = np.isin(hashes, roles.get("dev", ()))
    if not used.any():
        if recurring:
            return f"that you declared a new sample{recurring}"
        if earlier_training_rows(folder) != KNOWN:
            return HELD_OUT_HERE
        return HELD_OUT if np.isin(hashes, roles.get("calibration", ())).all() else NOT_TRAINED_ON
    logger.warning(
        "%d of the %d rows may have been used to select the checkpoint: the guarantee is optimistic.",
        int(used.sum()),
        len(hashes),
    )
    return SELECTION + recurring
