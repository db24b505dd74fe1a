"""Keys that earlier releases wrote under other names. Old files are read; new files have the new names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["current_calibration", "current_recipe_options"]

CALIBRATION = {"promise": "guarantee"}  # 0.1 → 0.2
GUARANTEE = {"of": "risk_type"}
RECIPE_OPTIONS = {"hard": "label_weight"}


def current_calibration(saved: Any) -> Any:
    """A saved `calibrated` entry with today's keys; anything that is not a mapping is returned unchanged."""
    if not isinstance(saved, Mapping):
        return saved
    saved = _renamed(saved, CALIBRATION)
    if isinstance(saved.get("guarantee"), Mapping):
        saved["guarantee"] = _renamed(saved["guarantee"], GUARANTEE)
    return saved


def current_recipe_options(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Saved options of a training recipe with today's names."""
    return _renamed(saved, RECIPE_OPTIONS)


def _renamed(saved: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in saved.items()}
