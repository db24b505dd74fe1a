"""The answers that a model is judged against, where not those of its own last exit.

An export's are those of the model that it was made of, at its full depth, in torch. A user may name another model, or a
file of texts with answers beside them (`--reference`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from offramp.core.runner import Runner
from offramp.data.hashes import hashes_of
from offramp.data.reading import Text
from offramp.data.rows import DataOptions, TaskRows, rows_for
from offramp.errors import BadInput, BadValue
from offramp.evaluation.traces.about import FULL_DEPTH, of_data
from offramp.evaluation.traces.recording import Reference
from offramp.exports.folder import source_of
from offramp.model.config import AdaptiveConfig
from offramp.runtimes import RUNTIMES
from offramp.training.imitation.teacher import called, logits_of_model

__all__ = ["named_reference", "reference_for"]

logger = logging.getLogger("offramp")


def reference_for(runner: Runner, texts: Sequence[Text]) -> Reference | None:
    """What torch answers in float32 where nobody leaves; None for torch itself, and where there are no weights."""
    if not RUNTIMES[runner.backend].runs_graphs:
        return None
    if not source_of(Path(runner.name)):
        logger.warning("%s has no weights for torch: its export is compared with its own last exit.", runner.name)
        return None
    from offramp.model.adaptive import AdaptiveModel

    model = AdaptiveModel.from_pretrained(runner.name).eval()
    model.gates_are_open = True  # exports have none
    full = model.runner(runner.limit)
    found = full.answer(texts, policy="never")
    return Reference(found.values, FULL_DEPTH, full.fingerprint)


def named_reference(name: str, runner: Runner, data: TaskRows) -> Reference:
    """The answers of a model (ours or a classifier of Hugging Face's), or of a file, to these rows."""
    if runner.config.answer_type.several_rows:
        raise BadValue(
            "A reference is of one answer per text, and this model reads several parts; leave `reference=` out."
        )
    if Path(name).is_file():
        return _of_file(name, runner.config, data)
    return _of_model(name, runner.config, data.rows.texts)


def _of_file(name: str, config: AdaptiveConfig, data: TaskRows) -> Reference:
    """Texts with their answers in a column `label`; rows are found by their texts."""
    known = rows_for(name, config, DataOptions(file=name), "dev")
    if known.labels is None:
        raise BadInput(f"{name} has no column label: a reference file holds texts and the answers to keep.")
    keys = hashes_of(known.rows.texts)
    places = {int(key): place for place, key in enumerate(keys)}
    said = {(int(key), str(answer)) for key, answer in zip(keys, known.labels.tolist(), strict=True)}
    if len(said) > len(places):
        raise BadInput(f"{name} has two answers to one text; a reference says one thing about each.")
    found = [places.get(int(key), -1) for key in hashes_of(data.rows.texts)]
    if missing := found.count(-1):
        first = data.rows.texts[found.index(-1)]
        raise BadInput(f"{name} has no answer to {missing:,} of the {len(found):,} rows, the first is {first!r:.60}.")
    answers = known.labels[np.asarray(found)]
    return Reference(answers, called(name), of_data(known.rows.texts, known.labels, known.task.labels))


def _of_model(name: str, config: AdaptiveConfig, texts: Sequence[Text]) -> Reference:
    logits, fingerprint = logits_of_model(name, config, texts)
    return Reference(config.answer_type.answers(logits), called(name), fingerprint)
