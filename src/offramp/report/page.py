"""Write the results of an evaluation into one HTML page: no network, no other files, opens from a disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from offramp.evaluation.results import Evaluation, finite

__all__ = ["page_of", "render"]

PLACE = "RESULTS_GO_HERE"  # stands once in the template, inside <script type="application/json">


def render(results: Evaluation) -> str:
    """The whole page as text."""
    return page_of(results.to_dict())


def page_of(results: Mapping[str, Any]) -> str:
    """The same, from what results.json holds."""
    template = files("offramp.report").joinpath("page.html").read_text("utf-8")
    before, after = template.split(PLACE)
    return before + _embedded(finite(results)) + after


def _embedded(results: dict[str, Any]) -> str:
    """JSON that no HTML parser can read as anything else: ASCII, and without <, > and &.

    These three stand in strings alone, where an escape means the same.
    """
    text = json.dumps(results, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
