"""The cells of the table of a guarantee per class: rows, unchanged predictions, and the limit that was tested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offramp.errors import BadModel
from offramp.files.typed_json import TypeMismatch, parse_json_as

__all__ = ["HEAD", "MAX_CLASSES", "check_tables", "class_table_rows"]

MAX_CLASSES = 20  # that are shown
HEAD = ("class", "rows", "same", "95 % interval", "guaranteed")


@dataclass(frozen=True)
class SavedLimit:
    """An entry of `limits` in a calibration."""

    name: str
    kind: str
    risk: float
    classes: list[str]
    outcomes: list[int]
    rows: int
    changed: int
    tested: bool
    missing: int
    grouped: bool


@dataclass(frozen=True)
class SavedClass:
    """An entry of `classes` in a calibration."""

    name: str
    rows: int
    kept: int
    interval: tuple[float, float]


def check_tables(calibrated: Mapping[str, Any]) -> None:
    """Raise `BadModel` if the limits or classes of a calibration are not as they are written."""
    for name, kind in (("limits", SavedLimit), ("classes", SavedClass)):
        saved = calibrated.get(name)
        try:
            if not isinstance(saved, list | None):
                raise TypeMismatch(f"{saved!r:.60} is not a list")
            for entry in saved or ():
                parse_json_as(kind, entry)
        except TypeMismatch as err:
            raise BadModel(f"`calibrated.{name}` is invalid ({err}). Calibrate again, or remove it.") from err


def class_table_rows(
    classes: Sequence[Mapping[str, Any]], limits: Sequence[Mapping[str, Any]], max_rows: int = MAX_CLASSES
) -> list[list[str]]:
    """Return the cells of the table, the classes that lose most first; the last row may stand for the rest."""
    ordered = sorted(classes, key=lambda entry: (entry["kept"] / max(entry["rows"], 1), -entry["rows"]))
    rows = [[entry["name"], *_cells(entry), _limit_of(entry["name"], limits)] for entry in ordered[:max_rows]]
    if len(ordered) > max_rows:
        rest = ordered[max_rows:]
        kept, total = (sum(entry[name] for entry in rest) for name in ("kept", "rows"))
        rows.append([f"{len(rest)} others", f"{total:,}", f"{percent(kept / max(total, 1))} %", "", ""])
    for limit in limits:
        if limit["kind"] != "class":
            same = percent(1 - limit["changed"] / max(limit["rows"], 1))
            rows.append([limit["name"], f"{limit['rows']:,}", f"{same} %", "", f"≥ {100 * (1 - limit['risk']):g} %"])
    return rows


def _cells(entry: Mapping[str, Any]) -> Iterable[str]:
    low, high = entry["interval"]
    yield f"{entry['rows']:,}"
    yield f"{percent(entry['kept'] / max(entry['rows'], 1))} %"
    yield f"{percent(low)}–{percent(high)} %"


def _limit_of(name: str, limits: Sequence[Mapping[str, Any]]) -> str:
    """Return the guaranteed minimum for a class, or how many rows are missing."""
    for limit in limits:
        if limit["kind"] == "class" and name in limit["classes"]:
            if not limit["tested"]:
                return f"no: {limit['missing']} more rows needed"
            together = f" ({len(limit['classes'])} classes together)" if len(limit["classes"]) > 1 else ""
            groups = ", mean over groups" if limit.get("grouped") else ""
            return f"≥ {100 * (1 - limit['risk']):g} %{together}{groups}"
    return "no"


def percent(value: float) -> str:
    """Return a fraction in percent with one decimal."""
    return f"{100 * value:.1f}"
