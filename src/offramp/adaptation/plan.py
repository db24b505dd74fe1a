"""One run of `adapt`: what its stages share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offramp.adaptation.texts import Parts, task_of
from offramp.adaptation.work import Work
from offramp.calibration.risks import Guarantee
from offramp.calibration.tuning.choosing import TuneOptions
from offramp.data.reading import Text
from offramp.data.rows import TaskRows
from offramp.model.adaptive import AdaptiveModel
from offramp.model.attach import ExitOptions
from offramp.training.holdout import KNOWN, earlier_rows
from offramp.training.imitation.heads import ImitationOptions
from offramp.training.imitation.teacher import called

__all__ = ["AdaptOptions", "NoGuarantee", "Plan"]

ORIGIN = "of yours that nothing else used"
UNSURE = f"{ORIGIN} (whether it was trained on some of them is not known)"


class NoGuarantee(Exception):
    """Nothing was saved within the risk: what was written on the way is not kept."""


@dataclass(frozen=True)
class AdaptOptions:
    """What is asked for beside the guarantee."""

    output: str
    exits: ExitOptions = field(default_factory=lambda: ExitOptions(heads="attention"))
    imitation: ImitationOptions = field(default_factory=ImitationOptions)
    tuning: TuneOptions = field(default_factory=lambda: TuneOptions("torch"))
    int8: str = "auto"
    max_length: int | None = None
    resume: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class Plan:
    """The model, the texts in three parts, what is asked for, and where things go."""

    name: str
    model: AdaptiveModel  # with an exit wherever one may be
    parts: Parts
    guarantee: Guarantee
    options: AdaptOptions
    work: Work
    new: Path  # the folder that becomes the output
    roles: dict[str, NDArray[np.uint64]]  # the rows that the model has seen, as far as known
    cut: int | None = None  # tokens, where texts are cut shorter than the model itself cuts them

    @property
    def origin(self) -> str:
        """What is known of the texts that the guarantee is tested on."""
        origin = ORIGIN if self.is_known else UNSURE
        return origin if self.cut is None else f"{origin}, all of them cut at {self.cut} tokens"

    @property
    def is_known(self) -> bool:
        """Whether all rows that the model was ever trained on are known here."""
        return bool(self.roles) and earlier_rows(Path(self.name)) == KNOWN

    @property
    def wish(self) -> str:
        """The guarantee that was asked for, in words."""
        return self.guarantee.about(self.model.config.answer_type)

    def rows(self, texts: list[Text]) -> TaskRows:
        """Texts as rows of the model's kind of answer."""
        return task_of(self.model.config, texts, f"texts for {called(self.name)}")

    def trace_file(self, name: str) -> Path:
        """Where a trace goes; what an interrupted run left of it may be of other heads."""
        file = self.work.folder / f"{name}.safetensors"
        file.unlink(missing_ok=True)
        return file
