"""The gate settings in a model's config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from offramp.errors import BadModel, BadValue, UnknownName

__all__ = ["MODES", "Width", "parse_width"]

MODES = {
    "gumbel": "a gate is open if its logit is not negative; with logistic noise in training",
    "topk": "a fixed fraction with the lowest logits is closed, also in training",
}
FIRST_INPUTS = {"real": "the mean of the real tokens", "all": "the mean of all positions, with padding, as published"}
FLOPS_COUNTS = {"exact": "this model's head size and heads", "original": "12 heads of size 64, as published"}


@dataclass(frozen=True)
class Width:
    """Gates in every layer: how they decide, how much they keep, what they prune together."""

    heads: str = "gumbel"
    channels: str = "gumbel"
    target: float = 1.0  # fraction of the FLOPs to keep, target_flops_ratio; 1: no loss terms
    weight: float = 4.0  # of these terms in the loss, loss_lambda
    head_group: int = 1  # heads that are kept or pruned together
    block: int = 1  # channels that are kept or pruned together
    first: str = "real"  # input of the first layer's head gate
    pad_to: int | None = None  # length to which rows are padded if that gate averages over padding
    flops: str = "exact"

    def __post_init__(self) -> None:
        for name, options in (
            ("heads", MODES),
            ("channels", MODES),
            ("first", FIRST_INPUTS),
            ("flops", FLOPS_COUNTS),
        ):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in options:
                raise UnknownName(f"value for width.{name}", str(value), options)
        if not _is_number(self.target) or not 0 < self.target <= 1:
            raise BadValue(f"The target ratio must be above 0 and at most 1, got {self.target!r:.40}.")
        if not _is_number(self.weight) or not 0 <= self.weight < 1e6:
            raise BadValue(f"The weight of the width loss must be at least 0, got {self.weight!r:.40}.")
        for name in ("head_group", "block", "pad_to"):
            value = getattr(self, name)
            if name == "pad_to" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadValue(f"`{name}` must be an integer of at least 1, got {value!r:.40}.")

    def check(self, heads: int, channels: int) -> None:
        """Raise if the groups do not divide a layer's heads or channels."""
        for name, total, size in (("head_group", heads, self.head_group), ("block", channels, self.block)):
            if total % size:
                raise BadValue(f"`{name}` must divide {total}, got {size}.")

    @property
    def prune(self) -> float:
        """The fraction to prune, as the original computes it."""
        return 1 - self.target

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of the config."""
        return asdict(self)


def parse_width(saved: Any) -> Width | None:
    """Return the width of a config's entry; None if there are no gates."""
    if saved is None or isinstance(saved, Width):
        return saved
    names = [field.name for field in fields(Width)]
    if not isinstance(saved, Mapping) or not set(saved) <= set(names):
        raise BadModel(f"`width` must be null or an object with the keys {', '.join(names)}, got {saved!r:.80}.")
    try:
        return Width(**saved)
    except (BadValue, UnknownName) as err:
        raise BadModel(f"`width`: {err}") from err


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
