"""A tiny model with a guarantee that its thresholds keep, or that they do not keep."""

from __future__ import annotations

import json
from pathlib import Path

import offramp
from tests.tiny import adaptive

LABELS = ["bad", "good", "so so"]
TEXTS = ["a good film", "the plot was not very good", "dull", "a lovely short film in the long plot"]
LOOSE, EXACT = "entropy:2", "never"  # all rows exit at the first exit; none before the last


def save_guaranteed(folder: Path, policy: str = LOOSE, risk: float = 0.02, class_risk: float | None = None) -> Path:
    """Save a model whose config says that at most `risk` of the predictions differ, whatever the policy does."""
    model = adaptive("bert", folder.with_name(f"{folder.name}-encoder"), labels=LABELS, policy=policy)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    limit = {"kind": "class", "risk": class_risk, "tested": True, "rows": 0, "changed": 0, "missing": 0}
    limits = [
        limit | {"name": name, "classes": [name], "outcomes": [index], "grouped": False}
        for index, name in enumerate(LABELS)
    ]
    config["calibrated"] = {
        "guarantee": {"risk_type": "disagreement", "risk": risk, "confidence": 0.9, "test": "binomial"},
        "sentence": f"At most {100 * risk:g} % differ.",
        "limits": [] if class_risk is None else limits,
        "policy": str(model.config.exit_policy),
        "fingerprint": offramp.load(folder).fingerprint,
        "backend": "torch",
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def texts(count: int) -> list[str]:
    """Return different texts of several lengths."""
    return [f"{TEXTS[number % 4]} {number}" for number in range(count)]
