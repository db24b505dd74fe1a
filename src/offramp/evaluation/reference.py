"""The predictions that a model is compared with, if not those of its own last exit.

An export is compared with its source model at full depth in torch. A user may choose another model, or a file of texts
with labels (`reference=`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from offramp.core.runner import Runner
from offramp.data.hashes import hash_texts
from offramp.data.reading import Text
from offramp.data.rows import DataOptions, TaskRows, load_rows
from offramp.errors import BadInput, BadValue
from offramp.evaluation.traces.about import FULL_DEPTH, data_fingerprint
from offramp.evaluation.traces.recording import Reference
from offramp.model.config import AdaptiveConfig
from offramp.model.folder import hash_weight_files
from offramp.runtimes import RUNTIMES
from offramp.training.imitation.teacher import full_model_logits, short_name

__all__ = ["named_reference", "reference_for"]

logger = logging.getLogger("offramp")


def reference_for(runner: Runner, texts: Sequence[Text]) -> Reference | None:
    """Return the full-depth float32 predictions of an export's source model; None for torch, or without weights."""
    if not RUNTIMES[runner.backend].runs_graphs:
        return None
    if not hash_weight_files(Path(runner.name)):
        logger.warning("%s has no torch weights: the export is compared with its own last exit.", runner.name)
        return None
    from offramp.model.adaptive import AdaptiveModel

    model = AdaptiveModel.from_pretrained(runner.name).eval()
    model.gates_are_open = True  # exports have none
    full = model.runner(runner.limit)
    outputs = full.answer(texts, policy="never", quiet=True)  # the trace of the export reports truncated texts
    logits = getattr(outputs, "logits", None)
    return Reference(outputs.values, FULL_DEPTH, full.fingerprint, logits)


def named_reference(name: str, runner: Runner, data: TaskRows) -> Reference:
    """Return the predictions of a model (an offramp model or a Hugging Face classifier) or of a file for these rows."""
    answer_type = runner.config.answer_type
    if answer_type.may_have_several_rows:
        raise BadValue(f"`reference=` does not support {answer_type.title}; remove it.")
    if Path(name).is_file():
        return _from_file(name, runner.config, data)
    return _from_model(name, runner.config, data.rows.texts)


def _from_file(name: str, config: AdaptiveConfig, data: TaskRows) -> Reference:
    """Read predictions from the column `label`; rows are matched by their texts."""
    table = load_rows(name, config, DataOptions(file=name), "dev")
    if table.labels is None:
        raise BadInput(f"{name} has no column label; a reference file needs texts and labels.")
    keys = hash_texts(table.rows.texts)
    indices = {int(key): index for index, key in enumerate(keys)}
    pairs = {(int(key), str(answer)) for key, answer in zip(keys, table.labels.tolist(), strict=True)}
    if len(pairs) > len(indices):
        raise BadInput(f"{name} has different labels for the same text; a reference needs one label per text.")
    matches = [indices.get(int(key), -1) for key in hash_texts(data.rows.texts)]
    if missing := matches.count(-1):
        first = data.rows.texts[matches.index(-1)]
        raise BadInput(f"{name} has no label for {missing:,} of the {len(matches):,} rows, such as {first!r:.60}.")
    answers = table.labels[np.asarray(matches)]
    return Reference(answers, short_name(name), data_fingerprint(table.rows.texts, table.labels, table.task.labels))


def _from_model(name: str, config: AdaptiveConfig, texts: Sequence[Text]) -> Reference:
    logits, fingerprint = full_model_logits(name, config, texts)
    return Reference(config.answer_type.answers(logits), short_name(name), fingerprint, logits)
