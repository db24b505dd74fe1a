"""The model folder that `adapt` writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from offramp.adaptation.plan import AdaptPlan
from offramp.data.hashes import hash_texts, normalizer
from offramp.model import card
from offramp.model.adaptive import AdaptiveModel
from offramp.training.holdout import TRAIN_NORMALIZED, UNKNOWN, earlier_training_rows, write_hashes
from offramp.training.imitation.teacher import short_name

__all__ = ["write_model"]


def write_model(plan: AdaptPlan, model: AdaptiveModel, evidence: str | None = None) -> None:
    """Write weights, tokenizer, card, hashes of the texts, and the evidence of the guarantee."""
    model.config.notes = _notes(plan)
    model.config.adapted_for = {"backend": plan.options.tuning.backend, "threads": plan.options.tuning.threads}
    model.name_or_path = model.config._name_or_path = ""  # do not copy the original's evidence
    model.save_pretrained(plan.new_folder)
    if evidence is not None:
        (plan.new_folder / card.EVIDENCE).write_text(evidence, encoding="utf-8")
    roles = {"train": plan.splits.training, "dev": plan.splits.selection, "calibration": plan.splits.test}
    hashes = {role: hash_texts(texts) for role, texts in roles.items()}
    hashes[TRAIN_NORMALIZED] = hash_texts(plan.splits.training, normalizer(model.tokenizer))
    for role in ("train", "dev", TRAIN_NORMALIZED):
        hashes[role] = np.concatenate([hashes[role], plan.model_hashes.get(role, hashes[role][:0])])
    earlier = earlier_training_rows(Path(plan.model_name)) if plan.model_hashes else UNKNOWN
    write_hashes(plan.new_folder, hashes, earlier)


def _notes(plan: AdaptPlan) -> str:
    """Return the section of the model card besides the guarantee."""
    answer_type = plan.model.config.answer_type
    unknown = (
        "" if plan.is_training_known else f" It is not known which {answer_type.input_names} that model was trained on."
    )
    return (
        f"## Training\n\nCreated with `offramp adapt` from {short_name(plan.model_name)}, without labels. The encoder "
        f"and the classification head are unchanged. {plan.splits.describe()}.{unknown} `report.html` shows which "
        f"predictions differ and where {answer_type.row_name}s exit."
    )
