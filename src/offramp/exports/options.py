"""Options of an export and the texts that it uses; imports no runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from offramp.data.reading import Text

__all__ = ["ExportOptions", "Texts"]


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export."""

    backend: str = "onnx"
    int8: str = "auto"  # static, token, dynamic, none; auto: the fastest that preserves predictions
    exits: str | Sequence[int] = "all"
    smooth: bool = True
    force: bool = False  # export even if predictions differ
    overwrite: bool = False
    threads: int | None = None


@dataclass(frozen=True)
class Texts:
    """Texts for quantization scales, and texts for the comparison with torch."""

    scales: list[Text] = field(default_factory=list)
    checked: list[Text] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)  # hashes of the texts, if they are the user's
