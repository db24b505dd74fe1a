"""Store the guarantee of a calibration in the config, and drop it if the model has changed since."""

from __future__ import annotations

import logging
from typing import Any

from offramp.model.config import AdaptiveConfig
from offramp.policies import Never, Policy
from offramp.runtimes import RUNTIMES

__all__ = ["bind", "clear", "drop_if_stale", "remind_if_outside"]

logger = logging.getLogger("offramp")


def bind(config: AdaptiveConfig, policy: Policy, evidence: dict[str, Any], fingerprint: str) -> None:
    """Write a policy, its guarantee and the fingerprint of the tested model into a config."""
    machine = evidence["machine"]
    config.policy = policy.to_dict()
    config.calibrated = {
        "guarantee": evidence["guarantee"],
        "sentence": evidence["sentence"],
        "limits": evidence.get("limits", []),
        "classes": evidence.get("classes", []),
        **{name: evidence[name] for name in ("rows", "losses", "speedup") if name in evidence},
        "policy": str(policy),
        "fingerprint": fingerprint,
        "backend": machine["backend"],
        "dtype": machine["dtype"],
    }


def drop_if_stale(config: AdaptiveConfig, name: str, fingerprint: str, backend: str, dtype: str) -> None:
    """Drop the guarantee and warn if the model, its tokenizer, policy, backend or dtype is not what was tested."""
    calibrated = config.calibrated
    if not calibrated:
        return
    if calibrated.get("fingerprint") == fingerprint and calibrated.get("policy") == str(config.exit_policy):
        return
    config.calibrated = None
    if not calibrated.get("guarantee"):
        return  # calibrated for speed, without a guarantee
    tested = f"{calibrated.get('backend')} in {calibrated.get('dtype')}"
    if (calibrated.get("backend"), calibrated.get("dtype")) != (backend, dtype):
        reason = f"it was tested on {tested}, and this is {backend} in {dtype}"
    elif calibrated.get("policy") != str(config.exit_policy):
        reason = f"the policy was changed to {config.exit_policy.describe()} after the calibration"
    else:
        reason = "its weights, exits, labels, tokenizer, maximum length or device have changed since the calibration"
        if RUNTIMES[backend].runs_graphs:
            reason += ", or the runtime's version or the CPU's instructions differ"
    logger.warning("%s: the guarantee does not hold here, because %s. Calibrate again.", name, reason)


def remind_if_outside(config: AdaptiveConfig, policy: Policy, max_layers: int | None) -> None:
    """Log a reminder if predictions with this policy and budget are outside the model's guarantee."""
    if not (config.calibrated or {}).get("guarantee") or isinstance(policy, Never):
        return
    if policy != config.exit_policy or max_layers is not None:
        changed = "`max_layers=`" if policy == config.exit_policy else f"the policy {policy.describe()}"
        logger.warning("The model's guarantee does not cover predictions with %s.", changed)


def clear(config: AdaptiveConfig) -> None:
    """Reset the policy, the guarantee and the temperatures, which belong to the old weights."""
    config.policy, config.calibrated, config.adapted_for = {"name": "never"}, None, None
    config.exits = [spec | {"temperature": 1.0} for spec in config.exits or ()]
