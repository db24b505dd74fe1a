"""Withdraw a model's guarantee if a calibration on fresh rows does not confirm it."""

from __future__ import annotations

import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

from offramp.calibration.risks import Guarantee, Risk
from offramp.core.runner import Runner
from offramp.evaluation.traces.trace import Trace
from offramp.exports.folder import save_policy
from offramp.files.writing import replace_files
from offramp.model import card
from offramp.runtimes import RUNTIMES

__all__ = ["WITHDRAWN", "is_refuted", "says_at_least", "withdraw_guarantee"]

WITHDRAWN = (
    "The model's guarantee is withdrawn: its policy fails the test on these rows, which were not tested before. The "
    "policy itself is not changed."
)


def says_at_least(calibrated: Any, guarantee: Guarantee) -> bool:
    """Return whether the guarantee of a calibrated model says at least as much as `guarantee`."""
    saved = (calibrated or {}).get("guarantee")
    if not saved or saved.get("average") or guarantee.average:
        return False
    known = {field.name for field in fields(Guarantee)}
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}
    stored = Guarantee(**{name: value for name, value in values.items() if name in known})
    same = ["risk_type", "tolerance", "group", *(["bands"] if guarantee.class_risk is not None else [])]
    if guarantee.recall is not None or guarantee.precision is not None:
        same += ["keep", "flag"]
    return (
        all(getattr(stored, name) == getattr(guarantee, name) for name in same)
        and _reference(stored) == _reference(guarantee)
        and stored.risk <= guarantee.risk
        and stored.confidence >= guarantee.confidence
        and (guarantee.class_risk is None or (stored.class_risk or 1.0) <= guarantee.class_risk)
        and (stored.recall or 0.0) >= (guarantee.recall or 0.0)
        and (stored.precision or 0.0) >= (guarantee.precision or 0.0)
    )


def _reference(guarantee: Guarantee) -> str | None:
    """Return the model that predictions are compared with; None for the model's own last exit."""
    return None if guarantee.frozen else guarantee.reference


def is_refuted(runner: Runner, guarantee: Guarantee, trace: Trace) -> bool:
    """Return whether the model's own policy fails the test of `guarantee` on these rows, although it should pass."""
    if not says_at_least(runner.config.calibrated, guarantee):
        return False
    p_values = Risk(guarantee, trace).p_values(trace.replay(runner.config.exit_policy))
    return bool(p_values.max() > guarantee.level)


def withdraw_guarantee(folder: Path, runner: Runner, evidence: str) -> None:
    """Remove the guarantee from the config and the model card, and save the evidence; the policy stays."""
    config = copy.deepcopy(runner.config)
    config.calibrated = None
    if RUNTIMES[runner.backend].runs_graphs:
        save_policy(folder, runner.backend, config, evidence)
        return
    files = {folder / "config.json": config.to_json_string(), folder / card.EVIDENCE: evidence}
    replace_files(card.new_card(config, folder) | files)
