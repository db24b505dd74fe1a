"""What is asked of an export, and the texts that it may use; needs none of the runtimes' libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from offramp.data.reading import Text

__all__ = ["ExportOptions", "Texts"]


@dataclass(frozen=True)
class ExportOptions:
    """What is asked for."""

    backend: str = "onnx"
    int8: str = "auto"  # static, token, dynamic, none; auto: the quickest that keeps the answers
    exits: str | Sequence[int] = "all"
    smooth: bool = True
    force: bool = False  # keep it though it answers differently
    overwrite: bool = False
    threads: int | None = None


@dataclass(frozen=True)
class Texts:
    """Real texts: some to take scales from, others to compare answers on."""

    scales: list[Text] = field(default_factory=list)
    checked: list[Text] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)  # hashes of them, where they are the user's own
