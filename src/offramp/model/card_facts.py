"""What the metadata of a model card needs to know about a model; stored in the config as `card`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offramp.errors import BadModel
from offramp.files.typed_json import TypeMismatch, parse_json_as

__all__ = ["CardFacts", "Score"]


@dataclass(frozen=True)
class Score:
    """A metric of the full model on a labelled dataset, between 0 and 1."""

    metric: str
    value: float
    dataset: str
    split: str
    hub: str | None = None  # the dataset on the Hub
    hub_config: str | None = None


@dataclass(frozen=True)
class CardFacts:
    """A model's base model, datasets and scores."""

    base_model: str | None = None  # on the Hub
    datasets: list[str] = field(default_factory=list)  # on the Hub
    scores: list[Score] = field(default_factory=list)

    @classmethod
    def from_config(cls, saved: Any) -> CardFacts:
        """Return the facts of a config's entry, which may be None."""
        try:
            return parse_json_as(cls, saved or {})
        except TypeMismatch as err:
            raise BadModel(f"`card` is invalid ({err}). Remove it.") from err
