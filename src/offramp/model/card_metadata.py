"""The metadata of a model card: what the Hub shows, filters by and lists as results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from offramp.model.card_facts import CardFacts, Score

__all__ = ["card_metadata"]

PRIVATE = "private"  # the type of a dataset that is not on the Hub


def card_metadata(
    facts: CardFacts, title: str, tag: str, family: str, guarantees: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return the front matter of a card as YAML; `guarantees` are calibrations by the name of their runtime."""
    results = [_result_of_score(score, tag) for score in facts.scores]
    for runtime, calibrated in guarantees.items():
        results += _results_of_guarantee(calibrated, tag, runtime)
    data = ModelCardData(
        library_name="offramp",
        pipeline_tag=tag,
        tags=["early-exit", family],
        base_model=facts.base_model,
        datasets=facts.datasets or None,
        model_name=title if results else None,
        eval_results=results or None,
    )
    return str(data.to_yaml())


def _result_of_score(score: Score, tag: str) -> EvalResult:
    return EvalResult(
        task_type=tag,
        dataset_type=score.hub or PRIVATE,
        dataset_name=score.dataset,
        dataset_config=score.hub_config,
        dataset_split=score.split,
        metric_type=score.metric,
        metric_value=score.value,
        metric_name=f"{score.metric} without early exits",
    )


def _results_of_guarantee(calibrated: Mapping[str, Any], tag: str, runtime: str) -> list[EvalResult]:
    """Return the agreement on the tested rows, and how many times fewer layers ran there."""
    rows, losses, speedup = (calibrated.get(name) for name in ("rows", "losses", "speedup"))
    dataset: dict[str, Any] = {
        "task_type": tag,
        "dataset_type": PRIVATE,
        "dataset_name": "texts that the guarantee was tested on",
    }
    results = []
    if (calibrated.get("guarantee") or {}).get("risk_type") == "disagreement" and rows and losses is not None:
        name = f"predictions equal to the full model's ({runtime}, {rows:,} rows)"
        agreement = round(1 - losses / rows, 4)
        results.append(EvalResult(**dataset, metric_type="agreement", metric_value=agreement, metric_name=name))
    if speedup:
        name = f"times fewer layers ({runtime})"
        value = round(float(speedup), 2)
        results.append(EvalResult(**dataset, metric_type="layer_speedup", metric_value=value, metric_name=name))
    return results
