"""What a model's config says of its gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from offramp.errors import BadModel, BadValue, UnknownName

__all__ = ["MODES", "Width", "width_of"]

MODES = {
    "gumbel": "a gate is open where its logit is not negative; with logistic noise in training",
    "topk": "the lowest logits' share is closed, the same in training",
}
READS = {"real": "the mean of the real tokens", "all": "the mean of all positions, padding included, as published"}
COUNTS = {"exact": "this model's own head size and heads", "original": "heads of 64 and 12 of them, as published"}


@dataclass(frozen=True)
class Width:
    """Gates on every layer: how they decide, how much they are to keep, what they prune together."""

    heads: str = "gumbel"
    channels: str = "gumbel"
    target: float = 1.0  # the share of the operations to keep, target_flops_ratio; 1: no loss terms
    weight: float = 4.0  # of those terms in the loss, loss_lambda
    head_group: int = 1  # heads that are kept or pruned together
    block: int = 1  # channels likewise
    first: str = "real"  # what the first layer's heads' gate reads
    pad_to: int | None = None  # where it reads padding: the length that rows are padded to
    flops: str = "exact"

    def __post_init__(self) -> None:
        for name, known in (("heads", MODES), ("channels", MODES), ("first", READS), ("flops", COUNTS)):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in known:
                raise UnknownName(f"{name} of width", str(value), known)
        if not _is_number(self.target) or not 0 < self.target <= 1:
            raise BadValue(f"The target ratio is {self.target!r:.40}; it is above 0 and at most 1.")
        if not _is_number(self.weight) or not 0 <= self.weight < 1e6:
            raise BadValue(f"The weight of the width terms is {self.weight!r:.40}; it is a number from 0.")
        for name in ("head_group", "block", "pad_to"):
            value = getattr(self, name)
            if name == "pad_to" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadValue(f"`{name}` of width is {value!r:.40}; it is a whole number from 1.")

    def check(self, heads: int, channels: int) -> None:
        """Refuse groups that do not divide a layer."""
        for name, whole, part in (("head_group", heads, self.head_group), ("block", channels, self.block)):
            if whole % part:
                raise BadValue(f"`{name}` of width is {part}, which does not divide {whole}.")

    @property
    def prune(self) -> float:
        """The share to prune, as the original computes it."""
        return 1 - self.target

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a config."""
        return asdict(self)


def width_of(saved: Any) -> Width | None:
    """A config's entry as it is meant; None: no gates."""
    if saved is None or isinstance(saved, Width):
        return saved
    known = [one.name for one in fields(Width)]
    if not isinstance(saved, Mapping) or not set(saved) <= set(known):
        raise BadModel(f"`width` is {saved!r:.80}; it has {', '.join(known)}, or is null.")
    try:
        return Width(**saved)
    except (BadValue, UnknownName) as err:
        raise BadModel(f"`width`: {err}") from err


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
