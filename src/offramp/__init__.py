"""offramp: BERT-like encoders that leave early.

    from offramp import AdaptiveModel, policies

Nothing heavy is loaded until it is used. transformers' Auto classes know our models once offramp is
imported, in whichever order the two come (`_auto.py`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from offramp import _auto

if TYPE_CHECKING:
    from offramp import policies
    from offramp.config import AdaptiveConfig
    from offramp.errors import OfframpError
    from offramp.loading import load
    from offramp.model import AdaptiveModel, AdaptiveOutput
    from offramp.prediction import Answer
    from offramp.runner import Runner

__version__ = "0.1.0"

__all__ = ["AdaptiveConfig", "AdaptiveModel", "AdaptiveOutput", "Answer", "OfframpError", "Runner", "load", "policies"]

_HOMES = {
    "AdaptiveConfig": "offramp.config",
    "AdaptiveModel": "offramp.model",
    "AdaptiveOutput": "offramp.model",
    "Answer": "offramp.prediction",
    "OfframpError": "offramp.errors",
    "Runner": "offramp.runner",
    "load": "offramp.loading",
}


def __getattr__(name: str) -> Any:
    if name == "policies":
        return importlib.import_module("offramp.policies")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'offramp' has no attribute {name!r}")


_auto.watch()
