"""Exits of a config: their layers, heads and pooling."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from offramp.errors import BadModel, BadValue, UnknownName

__all__ = ["HEADS", "POOLINGS", "ExitSpec", "exit_layers", "is_number"]

HEADS = {
    "linear": "a linear classifier",
    "pooler": "a dense tanh layer, then a linear classifier",
    "shared": "a dense tanh layer shared by all exits, then a linear classifier",
    "family": "the classification head of the family in transformers",
    "attention": "learned queries over the tokens, then a linear classifier",
}
POOLINGS = {
    "first": "the first token",
    "mean": "the mean over real tokens",
    "queries": "the learned queries of attention heads",
    "tokens": "every token, for per-token answer types",
}
QUERIES, QUERY_WIDTH = 4, 64  # defaults of attention heads; larger values did not help
CONVOLUTION, CONVOLUTION_LAYERS = 128, 2  # in `adapt`: channels, and the deepest layer whose exit has a convolution
INTERACTION_LAYERS = 4  # the deepest layer whose head may compare tokens
MAX_QUERIES = 4096
MAX_TEMPERATURE = 1_000_000
AUTO_ALL, AUTO_DENSE = 6, 4  # "auto": all layers up to this depth, else the first four and every second


@dataclass(frozen=True)
class ExitSpec:
    """An exit: its layer (0: the embeddings), the type of its head, and what the head pools.

    The logits are divided by the temperature, which `calibrate` can fit.
    """

    layer: int
    head: str = "linear"
    pooling: str = "mean"
    temperature: float = 1.0
    queries: int = QUERIES  # for attention heads
    width: int = QUERY_WIDTH  # output size of each query
    convolution: int = 0  # channels of a convolution over neighbouring tokens; 0: none
    interaction: int = 0  # for attention heads: projections by which tokens of a row are compared; 0: none

    def __post_init__(self) -> None:
        if not is_number(self.temperature) or not 0 < self.temperature <= MAX_TEMPERATURE:
            raise BadModel(
                f"The temperature of the exit on layer {self.layer!s:.20} must be above 0 and at most "
                f"{MAX_TEMPERATURE:,}, got {self.temperature!r:.60}."
            )
        if not isinstance(self.head, str) or self.head not in HEADS:
            raise UnknownName("head", str(self.head), HEADS)
        if not isinstance(self.pooling, str) or self.pooling not in POOLINGS:
            raise UnknownName("pooling", str(self.pooling), POOLINGS)
        if (self.head == "attention") is not (self.pooling == "queries"):
            raise BadModel(
                f"The exit on layer {self.layer!s:.20} has head {self.head!r} with pooling {self.pooling!r}; head "
                "'attention' needs pooling 'queries', and other heads do not support it."
            )
        for name, minimum in (("queries", 1), ("width", 1), ("convolution", 0), ("interaction", 0)):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or not minimum <= count <= MAX_QUERIES:
                raise BadModel(
                    f"`{name}` of the exit on layer {self.layer!s:.20} must be an integer between {minimum} and "
                    f"{MAX_QUERIES:,}, got {count!r:.60}."
                )
        if self.interaction and self.head != "attention":
            raise BadModel(
                f"The exit on layer {self.layer!s:.20} has head {self.head!r} with an interaction; only attention "
                "heads support one."
            )
        if self.convolution and self.head != "attention" and (self.head, self.pooling) != ("linear", "tokens"):
            raise BadModel(
                f"The exit on layer {self.layer!s:.20} has head {self.head!r} with a convolution; only attention heads "
                "and linear heads per token support one."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the exit as a config entry; `queries` and `width` only for attention heads.

        Without a convolution or an interaction the entry has no such key, so that fingerprints of older models stay the
        same.
        """
        unused = set() if self.head == "attention" else {"queries", "width"}
        unused |= {name for name in ("convolution", "interaction") if not getattr(self, name)}
        return {name: value for name, value in asdict(self).items() if name not in unused}

    @classmethod
    def from_config(cls, saved: Any) -> ExitSpec:
        """Return the exit of a config entry."""
        if isinstance(saved, cls):
            return saved
        known = [field.name for field in fields(cls)]
        if not isinstance(saved, Mapping) or "layer" not in saved or not set(saved) <= set(known):
            raise BadModel(
                f"Entries of `exits` must have `layer` and may have {', '.join(known[1:])}; got {saved!r:.80}."
            )
        return cls(**saved)


def exit_layers(exits: str | Iterable[int], depth: int) -> tuple[int, ...]:
    """Return the layers of the exits: of "all", of "auto", or of a list, to which the last layer is added.

    A list may start with 0, an exit on the embeddings. "auto" includes it, "all" does not. In models with more than six
    layers, "auto" is only every second layer after the fourth: exits of neighbouring deep layers are nearly the same.
    """
    if isinstance(exits, str) and exits == "all":
        return tuple(range(1, depth + 1))
    if isinstance(exits, str) and exits == "auto":
        dense = depth if depth <= AUTO_ALL else AUTO_DENSE
        return (*range(dense + 1), *range(dense + 2, depth, 2), *([depth] if depth > dense else []))
    if isinstance(exits, str) or not isinstance(exits, Iterable):
        raise BadValue(f"`exits` must be 'auto', 'all' or a list of layers from 0 to {depth}, got {exits!r}.")
    layers = list(exits)
    _check_layers(layers, depth)
    layers = [int(layer) for layer in layers]
    return tuple(layers) if layers[-1] == depth else (*layers, depth)


def _check_layers(layers: Sequence[Any], depth: int) -> None:
    listed = ", ".join(str(layer) for layer in layers)
    if not layers:
        raise BadValue(f"`exits` is empty. Use 'auto', 'all' or a list of layers from 0 to {depth}.")
    if any(isinstance(layer, bool) or not isinstance(layer, numbers.Integral) for layer in layers):
        raise BadValue(f"`exits` must be integers from 0 to {depth}, got {listed}.")
    if any(not 0 <= layer <= depth for layer in layers):
        raise BadValue(f"`exits` must be layers from 0 to {depth}, got {listed}.")
    if sorted(set(layers)) != list(layers):
        raise BadValue(f"`exits` must be in ascending order without duplicates, got {listed}.")


def is_number(value: Any) -> bool:
    """Return whether a value of a JSON file is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
