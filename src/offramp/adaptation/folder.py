"""The model folder that `adapt` writes, each of its files once."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from offramp.adaptation.plan import Plan
from offramp.data.hashes import hashes_of
from offramp.model import card
from offramp.model.adaptive import AdaptiveModel
from offramp.training.holdout import UNKNOWN, earlier_rows, write_hashes
from offramp.training.imitation.teacher import called

__all__ = ["write_model"]


def write_model(plan: Plan, small: AdaptiveModel, evidence: str | None = None) -> None:
    """Weights, tokenizer, card, who was where, and what the guarantee rests on."""
    small.config.notes = _notes(plan)
    small.name_or_path = small.config._name_or_path = ""  # its evidence is this one, not the original's
    small.save_pretrained(plan.new)
    if evidence is not None:
        (plan.new / card.EVIDENCE).write_text(evidence, encoding="utf-8")
    seen = {"train": plan.parts.training, "dev": plan.parts.choice, "calibration": plan.parts.test}
    hashes = {role: hashes_of(texts) for role, texts in seen.items()}
    for role in ("train", "dev"):
        hashes[role] = np.concatenate([hashes[role], plan.roles.get(role, hashes[role][:0])])
    write_hashes(plan.new, hashes, earlier_rows(Path(plan.name)) if plan.roles else UNKNOWN)


def _notes(plan: Plan) -> str:
    """What the card says beyond the guarantee."""
    known = "" if plan.is_known else " Which texts that model was trained on is not known here."
    return (
        f"## How it was made\n\nBy `offramp adapt` from {called(plan.name)}, whose encoder and last exit are "
        f"unchanged, without labels: {plan.parts.told()}.{known} `report.html` shows where texts exit, and those on "
        "which the two differ."
    )
