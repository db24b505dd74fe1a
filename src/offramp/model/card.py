"""The model card (README.md) of a model folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from offramp.model.config import AdaptiveConfig

__all__ = ["EVIDENCE", "model_card", "new_card"]

EVIDENCE = "calibration.json"  # the calibration results that a guarantee is based on
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

A {layers}-layer `{family}` encoder with {count} exits, built with offramp. Easy inputs exit at an early layer; hard \
inputs run through all layers.
{calibration}
## Usage

```sh
pip install offramp
```

```python
from offramp import AdaptiveModel

model = AdaptiveModel.from_pretrained("path/to/this/model")
{usage}
```

After `import offramp` you can also load the model with {auto}.

## Model details

| | |
|---|---|
| Backbone | `{family}`, {layers} layers, hidden size {hidden_size} |
| Task | {task} |
| Labels | {labels} |
| Exit policy | {policy} |
{width}
| Exit layer | Head | Pooling |
|---|---|---|
{exits}
{notes}"""


def new_card(config: AdaptiveConfig, folder: Path) -> dict[Path, str]:
    """Return the card's path and text; empty if the folder has a card that offramp did not write."""
    file = folder / "README.md"
    replaceable = not file.exists() or (file.is_file() and MARK.encode() in file.read_bytes())
    return {file: model_card(config)} if replaceable else {}


def model_card(config: AdaptiveConfig) -> str:
    """Return the card as Markdown."""
    specs = config.exit_specs
    return TEMPLATE.format(
        **asdict(config.answer_type.card),
        family=config.family.name,
        layers=config.num_layers,
        hidden_size=config.hidden_size,
        count=len(specs),
        task=config.answer_type.title,
        labels=config.answer_type.describe_labels(config.labels),
        policy=config.exit_policy.describe(),
        width=_width_row(config),
        calibration=_calibration(config),
        notes=_notes(config),
        mark=MARK,
        exits="\n".join(f"| {spec.layer} | {spec.head} | {spec.pooling} |" for spec in specs),
    )


def _calibration(config: AdaptiveConfig) -> str:
    if not config.calibrated:
        return ""
    title = "Guarantee" if config.calibrated.get("guarantee") else "Calibration"
    return f"\n## {title}\n\n{config.calibrated['sentence']}\n\nDetails are in `{EVIDENCE}`.\n"


def _notes(config: AdaptiveConfig) -> str:
    if not config.notes:
        return ""
    heading = "" if config.notes.startswith("#") else "## Notes\n\n"
    return f"\n{heading}{config.notes}\n"


def _width_row(config: AdaptiveConfig) -> str:
    width = config.gating
    if width is None:
        return ""
    groups = f"groups of {width.head_group} heads and {width.block} channels"
    return f"| Width | gates prune heads and channels per input ({groups}), target {width.target:.0%} of the FLOPs |\n"
