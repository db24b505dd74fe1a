"""A run of `adapt`: what its stages share."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.adaptation.texts import TextSplits, unlabelled_rows
from offramp.adaptation.work_folder import WorkFolder
from offramp.calibration.ledger import TestRecord
from offramp.calibration.risks import Guarantee
from offramp.calibration.rows import CalibrationRows
from offramp.calibration.tuning.choosing import TuneOptions
from offramp.data.reading import Text
from offramp.data.rows import TaskRows
from offramp.model.adaptive import AdaptiveModel
from offramp.model.attach import ExitOptions
from offramp.runtimes import RUNTIMES
from offramp.training.holdout import KNOWN, earlier_training_rows
from offramp.training.imitation.heads import ImitationOptions
from offramp.training.imitation.teacher import short_name

__all__ = ["AdaptOptions", "AdaptPlan", "NoGuarantee"]

logger = logging.getLogger("offramp")

ORIGIN = "that were not used to train or select the exits"


class NoGuarantee(Exception):
    """No faster model satisfies the guarantee; the output is not written.

    `tested`: whether the test texts were used; they are recorded then.
    """

    def __init__(self, message: str, tested: bool = False):
        super().__init__(message)
        self.tested = tested


@dataclass(frozen=True)
class AdaptOptions:
    """Options of `adapt` besides the guarantee."""

    output: str
    exits: ExitOptions = field(default_factory=lambda: ExitOptions(heads="attention"))
    imitation: ImitationOptions = field(default_factory=ImitationOptions)
    tuning: TuneOptions = field(default_factory=lambda: TuneOptions("torch"))
    int8: str = "auto"
    max_length: int | None = None
    device: str | None = None
    resume: bool = False
    overwrite: bool = False
    group_column: str | None = None
    ledger: str | None = None  # file that records tests; None: in the output folder, or next to it
    answer_options: Mapping[str, Any] | None = None  # of the answer type that the examples imply


@dataclass(frozen=True)
class AdaptPlan:
    """The model, the texts, the options, and the folders of a run."""

    model_name: str
    model: AdaptiveModel  # with all candidate exits
    splits: TextSplits
    guarantee: Guarantee
    options: AdaptOptions
    work: WorkFolder
    new_folder: Path  # becomes the output
    model_hashes: dict[str, NDArray[np.uint64]]  # known rows that the model was trained on, by role
    truncated_to: int | None = None  # tokens, if texts are truncated more than by the original model
    earlier: tuple[TestRecord, ...] = ()  # recorded tests of guarantees

    @property
    def origin(self) -> str:
        """Description of the test rows in the guarantee's sentence."""
        origin = ORIGIN
        if not self.is_training_known:
            origin += f"; it is not known whether {short_name(self.model_name)} was trained on some of them"
        return origin if self.truncated_to is None else f"{origin}; truncated to {self.truncated_to} tokens"

    @property
    def is_training_known(self) -> bool:
        """Whether all rows that the model was trained on are known."""
        return bool(self.model_hashes) and earlier_training_rows(Path(self.model_name)) == KNOWN

    def log_step(self, number: int, description: str) -> None:
        """Log the start of a step."""
        steps = 5 if RUNTIMES[self.options.tuning.backend].runs_graphs else 4
        logger.info("Step %d of %d: %s", number, steps, description)

    def rows(self, texts: list[Text]) -> TaskRows:
        """Return texts as rows of the model's task."""
        return unlabelled_rows(self.model.config, texts, f"texts for {short_name(self.model_name)}")

    @property
    def test_rows(self) -> CalibrationRows:
        """The texts that test the guarantee."""
        splits, guarantee = self.splits, self.guarantee
        facts = (guarantee.count, splits.keys, guarantee.group, splits.clusters, self.earlier)
        return CalibrationRows(self.rows(splits.test), self.origin, *facts)

    def trace_file(self, name: str) -> Path:
        """Return the path of a new trace. A trace left by an interrupted run is deleted: its heads may differ."""
        file = self.work.folder / f"{name}.safetensors"
        file.unlink(missing_ok=True)
        return file
