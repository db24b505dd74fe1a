"""The answers that an export is judged against: those of the model that it was made of, at its full depth."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from offramp.batching import Text
from offramp.export.folder import source_of
from offramp.runner import Runner
from offramp.traces.recording import Reference

__all__ = ["reference_for"]

logger = logging.getLogger("offramp")

NAME = "torch in float32, at full depth"


def reference_for(runner: Runner, texts: Sequence[Text]) -> Reference | None:
    """What torch answers in float32 where nobody leaves; None for torch itself, and where there are no weights."""
    if runner.backend == "torch":
        return None
    if not source_of(Path(runner.name)):
        logger.warning("%s has no weights for torch: its export is compared with its own last exit.", runner.name)
        return None
    from offramp.model import AdaptiveModel

    model = AdaptiveModel.from_pretrained(runner.name).eval()
    model.gates_are_open = True  # exports have none
    full = model.runner(runner.limit)
    found = full.answer(texts, policy="never")
    answers = found.texts if runner.config.problem.is_span else runner.config.problem.answers(found.logits)
    return Reference(answers, NAME, full.fingerprint)
