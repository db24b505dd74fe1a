"""A guarantee is about what it was tested on: kept while that is what runs, dropped aloud when it is not."""

from __future__ import annotations

import logging
from typing import Any

from offramp.model.config import AdaptiveConfig
from offramp.policies import Policy
from offramp.runtimes import RUNTIMES

__all__ = ["bind", "drop_if_stale", "forget"]

logger = logging.getLogger("offramp")


def bind(config: AdaptiveConfig, policy: Policy, evidence: dict[str, Any], fingerprint: str) -> None:
    """Write a policy and what was promised of it into a config, with the fingerprint of what was tested."""
    machine = evidence["machine"]
    config.policy = policy.to_dict()
    config.calibrated = {
        "guarantee": evidence["guarantee"],
        "sentence": evidence["sentence"],
        "policy": str(policy),
        "fingerprint": fingerprint,
        "backend": machine["backend"],
        "dtype": machine["dtype"],
    }


def drop_if_stale(config: AdaptiveConfig, name: str, fingerprint: str, backend: str, dtype: str) -> None:
    """Drop the guarantee, in one line, where weights, exits, tokenizer, length, policy, backend or dtype are others."""
    promised = config.calibrated
    if not promised:
        return
    if promised.get("fingerprint") == fingerprint and promised.get("policy") == str(config.exit_policy):
        return
    config.calibrated = None
    if not promised.get("guarantee"):
        return  # chosen for speed: nothing was promised
    tested = f"{promised.get('backend')} in {promised.get('dtype')}"
    if (promised.get("backend"), promised.get("dtype")) != (backend, dtype):
        why = f"it was tested on {tested} and this is {backend} in {dtype}"
    elif promised.get("policy") != str(config.exit_policy):
        why = f"it was tested with the policy {promised.get('policy')} and this one is {config.exit_policy}"
    else:
        why = "its weights, exits, labels, tokenizer or maximum length are not those that it was tested with"
        why += "" if not RUNTIMES[backend].runs_graphs else ", or the runtime's version or the CPU's instructions"
    logger.warning("%s: what was promised of it does not hold here, %s. Calibrate again.", name, why)


def forget(config: AdaptiveConfig) -> None:
    """Clear what was chosen for these weights: others will need another policy, other temperatures, another test."""
    config.policy, config.calibrated = {"name": "never"}, None
    config.exits = [spec | {"temperature": 1.0} for spec in config.exits or ()]
