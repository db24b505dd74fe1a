"""Write the results of an evaluation into one HTML page: no network, no other files, opens from a disk."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

__all__ = ["render"]

PLACE = "RESULTS_GO_HERE"  # stands once in the template, inside <script type="application/json">


def render(results: Mapping[str, Any]) -> str:
    """The whole page as text, from what results.json holds."""
    template = files("offramp.report").joinpath("page.html").read_text("utf-8")
    before, after = template.split(PLACE)
    return before + _embedded(results) + after


def _embedded(results: Mapping[str, Any]) -> str:
    """JSON that no HTML parser can read as anything else: ASCII, and without <, > and &.

    These three stand in strings alone, where an escape means the same.
    """
    text = json.dumps(_finite(results), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """The same with None for NaN and infinities, which JSON has not; the page prints a dash for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
