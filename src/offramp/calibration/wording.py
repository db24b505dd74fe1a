"""The sentence of a guarantee: what it is about, what it limits, and what it does not cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offramp.calibration.limits import CLASS, PRECISION, RECALL
from offramp.calibration.risks import Guarantee, Risk

__all__ = ["confidence_of", "describe_guarantee"]

MAX_NAMES = 3  # of classes in a sentence

Limits = Sequence[Mapping[str, Any]]


def confidence_of(guarantee: Guarantee) -> str:
    """Return "with 90 % confidence", or what holds instead."""
    if guarantee.average:
        return "on average over calibrations"
    return f"with {100 * guarantee.confidence:g} % confidence"


def describe_guarantee(risk: Risk, limits: Limits, origin: str) -> str:
    """Return the sentence of a guarantee that was tested on these rows; `limits` as in its evidence."""
    guarantee, answer_type = risk.guarantee, risk.trace.answer_type
    labels = risk.trace.about["model"]["labels"]
    start = confidence_of(guarantee)
    over = "" if guarantee.group is None else f" on average over groups ({guarantee.group}),"
    names = answer_type.outcome_names(labels, guarantee.bands)
    kind = "bands" if guarantee.bands else answer_type.outcome_nouns
    classes = [limit for limit in limits if limit["kind"] == CLASS]
    together = f" (all {kind} together)" if classes else ""
    parts = [f"{start[0].upper()}{start[1:]},{over} {guarantee.describe(answer_type)}{together}"]
    if whom := _covered(classes, len(names), kind):
        rate = f"at most {100 * float(guarantee.class_risk or 0):g} %"
        if guarantee.bands:
            whom = "every band" if whom == "every class" else f"the band {whom}"
            parts.append(f"{rate} of the values in {whom} change to another band")
        else:
            whom = f"every {answer_type.outcome_noun}" if whom == "every class" else whom
            parts.append(answer_type.outcome_change.format(rate=rate, outcomes=whom))
    model = guarantee.reference or "the full model"
    for limit in limits:
        rate = f"{100 * (1 - limit['risk']):g} %"
        decision = guarantee.flag or " or ".join(guarantee.keep)
        if limit["kind"] == RECALL:
            parts.append(f"at least {rate} of the texts that {model} flags ({decision}) stay flagged")
        elif limit["kind"] == PRECISION:
            parts.append(f"at least {rate} of the texts flagged ({decision}) after early exits are flagged by {model}")
    statement = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])}, and {parts[-1]}"
    if names and (guarantee.class_risk is None or not classes):
        uncovered = f" There is no limit per {answer_type.outcome_noun}."
    else:
        uncovered = _not_covered(classes, names)
    return f"{statement}, on {answer_type.input_names} like those tested: {_tested(risk, origin)}.{uncovered}"


def _tested(risk: Risk, origin: str) -> str:
    guarantee, rows, answer_type = risk.guarantee, len(risk.trace), risk.trace.answer_type
    unit, units = answer_type.unit, answer_type.plural
    if guarantee.count == "texts" and unit == "row":
        unit, units = "unique text", "unique texts"
    counted = f"{rows:,} {unit if rows == 1 else units}"
    if guarantee.group:
        counted += f" in {len(risk.order):,} groups"
    return f"{counted} {origin}"


def _covered(classes: Limits, num_classes: int, nouns: str) -> str:
    """Return the classes with a tested limit as text; empty if there are none."""
    single = [limit["name"] for limit in classes if limit["tested"] and len(limit["classes"]) == 1]
    pooled = [limit["name"] for limit in classes if limit["tested"] and len(limit["classes"]) > 1]
    if len(single) == num_classes and single:
        return "every class"
    names = [f"each of {len(single)} {nouns}"] if len(single) > MAX_NAMES else single
    return " and of ".join([*([_join(names)] if names else []), *pooled])


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _not_covered(classes: Limits, names: Sequence[str]) -> str:
    """Return sentences about classes with too few rows or none; empty if all are covered."""
    rare = [name for limit in classes if not limit["tested"] for name in limit["classes"]]
    known = {name for limit in classes for name in limit["classes"]}
    absent = [name for name in names if name not in known] if classes else []
    sentences = []
    if rare:
        missing = next(limit["missing"] for limit in classes if not limit["tested"])
        together = "" if len(rare) == 1 else " of them together"
        sentences.append(f"Not covered: {_shorten(rare)} (too few rows; {missing:,} more{together} are needed).")
    if absent:
        sentences.append(f"Not covered: {_shorten(absent)} (never predicted for these rows).")
    return "".join(f" {sentence}" for sentence in sentences)


def _shorten(names: Sequence[str]) -> str:
    more = [f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return _join([*names[:MAX_NAMES], *more])
