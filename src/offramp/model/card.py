"""The model card that a saved folder gets."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from offramp.model.config import AdaptiveConfig

__all__ = ["EVIDENCE", "model_card", "new_card"]

EVIDENCE = "calibration.json"  # beside the config: what a guarantee rests on
MARK = "<!-- written by offramp; delete this line to keep your own changes -->"

TEMPLATE = """\
---
library_name: offramp
pipeline_tag: {tag}
tags:
- early-exit
- {family}
---

{mark}
# {title}

An encoder of {layers} layers that leaves early: easy inputs stop at one of {count} exits, hard ones go on.
ExportedGraphs with offramp.

| | |
|---|---|
| backbone | {family}, {layers} layers of {hidden} |
| answer | {problem} |
| labels | {labels} |
| policy | `{policy}` |
{width}{guarantee}{notes}
| exit on layer | head | reads |
|---|---|---|
{exits}

```python
from offramp import AdaptiveModel

model = AdaptiveModel.from_pretrained("this folder")
{usage}
```

{auto} once `import offramp` was said; without it the library only says that it does not know the model type `offramp`.
"""


def new_card(config: AdaptiveConfig, folder: Path) -> dict[Path, str]:
    """The card's file and its text; nothing where somebody wrote another one."""
    file = folder / "README.md"
    ours = not file.exists() or (file.is_file() and MARK.encode() in file.read_bytes())
    return {file: model_card(config)} if ours else {}


def model_card(config: AdaptiveConfig) -> str:
    """The card's text, from what the config knows."""
    specs = config.exit_specs
    return TEMPLATE.format(
        **asdict(config.answer_type.card),
        family=config.family.name,
        layers=config.num_layers,
        hidden=config.hidden_size,
        count=len(specs),
        problem=config.answer_type.title,
        labels=config.answer_type.describe_labels(config.labels),
        policy=config.exit_policy,
        width=_width(config),
        guarantee=f"\n{config.calibrated['sentence']}\n" if config.calibrated else "",
        notes=f"\n{config.notes}\n" if config.notes else "",
        mark=MARK,
        exits="\n".join(f"| {spec.layer} | {spec.head} | {spec.pooling} |" for spec in specs),
    )


def _width(config: AdaptiveConfig) -> str:
    width = config.gating
    if width is None:
        return ""
    each = f"{width.head_group} heads, {width.block} channels together"
    return f"| width | gates prune heads and channels per input ({each}), for {width.target:.0%} of the operations |\n"
