"""Who may leave: frozen dataclasses, pure functions of what the exits have said so far.

| written                        | leaves at an exit when                                              |
|--------------------------------|---------------------------------------------------------------------|
| `entropy:0.2`                  | the entropy of its softmax (nats) is below the threshold            |
| `confidence:0.9`               | its largest probability reaches the threshold                       |
| `margin:0.8`                   | its two largest probabilities lie that far apart                    |
| `patience:6`, `patience:3:0.1` | so many comparisons in a row agreed (regression: within a tolerance) |
| `patience-confidence:2:0.3`    | the entropy was below the threshold at so many exits in a row       |
| `vote:3`, `vote:1.5:0.5`       | one class has that many votes (divided by exits ** power)           |
| `learned:0.1`                  | its LTE module's estimate that it is wrong is below the threshold   |
| `risk:0.02`                    | a judge that was fitted to it says its answer is that unlikely to differ |
| `layer:6`                      | it sits on that layer                                               |
| `never`                        | it is the last one                                                  |

Numbers are separated by colons; a threshold may be a list, one per exit: `entropy:0.1,0.2,0.4`.
The last exit always leaves and is never asked, so its entry may be left out.
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
    "Vote",
    "from_dict",
    "parse",
]

# name, an example, and where the class is: what the command line shows without loading torch
TABLE = {
    "entropy": ("entropy:0.2", "certainty", "Entropy"),
    "confidence": ("confidence:0.9", "certainty", "Confidence"),
    "margin": ("margin:0.8", "certainty", "Margin"),
    "patience": ("patience:6", "agreement", "Patience"),
    "patience-confidence": ("patience-confidence:2:0.3", "agreement", "PatienceConfidence"),
    "vote": ("vote:3", "agreement", "Vote"),
    "learned": ("learned:0.1", "certainty", "Learned"),
    "risk": ("risk:0.02", "risk_model", "RiskModel"),
    "layer": ("layer:6", "fixed", "Layer"),
    "never": ("never", "fixed", "Never"),
}

POLICIES: LazyRegistry[type[Policy]] = LazyRegistry(
    "policy", {name: f"offramp.policies.{module}:{class_name}" for name, (_, module, class_name) in TABLE.items()}
)
_HOMES = {class_name: module for _, module, class_name in TABLE.values()}
_HOMES |= {"from_dict": "parsing", "parse": "parsing", "Memory": "policy", "Policy": "policy"}


def __getattr__(name: str) -> Any:
    if name == "Judged":
        warnings.warn("offramp.policies.Judged is deprecated; use RiskModel.", DeprecationWarning, stacklevel=2)
        name = "RiskModel"
    if name in _HOMES:
        return getattr(importlib.import_module(f"offramp.policies.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'offramp.policies' has no attribute {name!r}")
