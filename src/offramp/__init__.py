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
    from offramp.answers.answer import Answer
    from offramp.core.runner import Runner
    from offramp.errors import OfframpError
    from offramp.model.adaptive import AdaptiveModel, AdaptiveOutput
    from offramp.model.config import AdaptiveConfig
    from offramp.runtimes.loading import load

__version__ = "0.1.0"

__all__ = ["AdaptiveConfig", "AdaptiveModel", "AdaptiveOutput", "Answer", "OfframpError", "Runner", "load", "policies"]

_HOMES = {
    "AdaptiveConfig": "offramp.model.config",
    "AdaptiveModel": "offramp.model.adaptive",
    "AdaptiveOutput": "offramp.model.adaptive",
    "Answer": "offramp.answers.answer",
    "OfframpError": "offramp.errors",
    "Runner": "offramp.core.runner",
    "load": "offramp.runtimes.loading",
}


def __getattr__(name: str) -> Any:
    if name == "policies":
        return importlib.import_module("offramp.policies")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'offramp' has no attribute {name!r}")


_auto.watch()
