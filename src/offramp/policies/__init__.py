"""Exit policies: frozen dataclasses that decide, from the outputs of the exits so far, which rows exit.

| written as                     | a row exits when                                                         |
|--------------------------------|--------------------------------------------------------------------------|
| `entropy:0.2`                  | the entropy of the class probabilities (nats) is below the threshold     |
| `confidence:0.9`               | the largest probability is at least the threshold                        |
| `margin:0.8`                   | the two largest probabilities differ by at least the threshold           |
| `patience:6`, `patience:3:0.1` | that many comparisons in a row agreed (regression: within a tolerance)   |
| `patience-confidence:2:0.3`    | the entropy was below the threshold at that many exits in a row          |
| `vote:3`, `vote:1.5:0.5`       | a class has that many votes (divided by exits ** power)                  |
| `learned:0.1`                  | the learning-to-exit module estimates an error below the threshold       |
| `risk:0.02`                    | the risk model's probability of a changed prediction is below the threshold |
| `top-k:10:3`                   | its score lies three errors below the tenth best of the query (rankings) |
| `layer:6`                      | the exit is on that layer                                                |
| `never`                        | the exit is the last one                                                 |

Numbers are separated by colons. A threshold may be a list with one number per exit: `entropy:0.1,0.2,0.4`. All rows
exit at the last exit, so its number may be omitted.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from offramp.registry import LazyRegistry

if TYPE_CHECKING:
    from offramp.policies.agreement import Patience, PatienceConfidence, Vote
    from offramp.policies.certainty import Confidence, Entropy, Learned, Margin
    from offramp.policies.fixed import Layer, Never
    from offramp.policies.parsing import from_dict, parse
    from offramp.policies.policy import Memory, Policy
    from offramp.policies.risk_model import RiskModel
    from offramp.policies.top_k import TopK

__all__ = [
    "POLICIES",
    "Confidence",
    "Entropy",
    "Layer",
    "Learned",
    "Margin",
    "Memory",
    "Never",
    "Patience",
    "PatienceConfidence",
    "Policy",
    "RiskModel",
    "TopK",
    "Vote",
    "from_dict",
    "parse",
]

# name → example, module, class; lets the command line list the policies without importing torch
TABLE = {
    "entropy": ("entropy:0.2", "certainty", "Entropy"),
    "confidence": ("confidence:0.9", "certainty", "Confidence"),
    "margin": ("margin:0.8", "certainty", "Margin"),
    "patience": ("patience:6", "agreement", "Patience"),
    "patience-confidence": ("patience-confidence:2:0.3", "agreement", "PatienceConfidence"),
    "vote": ("vote:3", "agreement", "Vote"),
    "learned": ("learned:0.1", "certainty", "Learned"),
    "risk": ("risk:0.02", "risk_model", "RiskModel"),
    "top-k": ("top-k:10:3", "top_k", "TopK"),
    "layer": ("layer:6", "fixed", "Layer"),
    "never": ("never", "fixed", "Never"),
}

POLICIES: LazyRegistry[type[Policy]] = LazyRegistry(
    "policy", {name: f"offramp.policies.{module}:{class_name}" for name, (_, module, class_name) in TABLE.items()}
)
_MODULES = {class_name: module for _, module, class_name in TABLE.values()}
_MODULES |= {"from_dict": "parsing", "parse": "parsing", "Memory": "policy", "Policy": "policy"}


def __getattr__(name: str) -> Any:
    if name == "Judged":
        warnings.warn("offramp.policies.Judged is deprecated; use RiskModel.", DeprecationWarning, stacklevel=2)
        name = "RiskModel"
    if name in _MODULES:
        return getattr(importlib.import_module(f"offramp.policies.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'offramp.policies' has no attribute {name!r}")
