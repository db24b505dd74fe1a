"""Render the results of an evaluation as one self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from offramp.evaluation.results import Evaluation, finite

__all__ = ["page_of", "render"]

PLACEHOLDER = "RESULTS_GO_HERE"  # occurs once in the template, inside <script type="application/json">


def render(results: Evaluation) -> str:
    """Return the page of an evaluation."""
    return page_of(results.to_dict())


def page_of(results: Mapping[str, Any]) -> str:
    """Return the page from the content of results.json."""
    template = files("offramp.report").joinpath("page.html").read_text("utf-8")
    before, after = template.split(PLACEHOLDER)
    return before + _embedded(finite(results)) + after


def _embedded(results: dict[str, Any]) -> str:
    """Return JSON that is safe inside HTML: ASCII, with <, > and & escaped (in JSON they occur in strings only)."""
    text = json.dumps(results, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
