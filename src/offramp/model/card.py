"""The model card (README.md) of a model folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from offramp.model.card_facts import CardFacts
from offramp.model.card_metadata import card_metadata
from offramp.model.class_table import HEAD, class_table_rows
from offramp.model.config import AdaptiveConfig
from offramp.model.folder import ExportSummary, exports_in
from offramp.runtimes import RUNTIMES

__all__ = ["EVIDENCE", "card_on_hub", "model_card", "new_card"]

EVIDENCE = "calibration.json"  # the calibration results that a guarantee is based on
MARK = "<!-- written by offramp; delete this line to keep your own changes -->"
PLACE = "path/to/this/model"

TEMPLATE = """\
---
{metadata}
---

{mark}
# {title}

```sh
pip install {package}
```

```python
import offramp

model = offramp.load("path/to/this/model"){backend_note}
{usage}
```

Or use the command line, or an HTTP server with Hugging Face's request format (`pip install 'offramp[serve]'`):

```sh
offramp predict path/to/this/model texts.txt --output predictions.csv
offramp serve path/to/this/model
```

With transformers, in PyTorch (offramp must be installed):

```python
{transformers}
```

A {layers}-layer `{family}` encoder with {count} exits, built with offramp. Easy inputs exit at an early layer; hard \
inputs run through all layers.
{runtimes}{guarantees}
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
    return {file: model_card(config, exports_in(folder, config.exits))} if replaceable else {}


def card_on_hub(card: str, repo: str) -> str:
    """Return a card with the name that the model has on the Hub; a card of your own is unchanged."""
    return card.replace(PLACE, repo) if MARK in card else card


def model_card(config: AdaptiveConfig, exports: Mapping[str, ExportSummary] | None = None) -> str:
    """Return the card as Markdown; `exports` are those in the model folder."""
    specs, exports, parts = config.exit_specs, exports or {}, config.answer_type.card
    metadata = card_metadata(
        CardFacts.from_config(config.card), parts.title, parts.tag, config.family.name, _calibrated(config, exports)
    )
    backend = (config.adapted_for or {}).get("backend", "torch")
    extra = RUNTIMES[backend].extra if backend in RUNTIMES else None
    return TEMPLATE.format(
        metadata=metadata,
        title=parts.title,
        usage=parts.usage,
        transformers=parts.transformers,
        runtimes=_runtimes(config, exports),
        family=config.family.name,
        layers=config.num_layers,
        hidden_size=config.hidden_size,
        count=len(specs),
        task=config.answer_type.title,
        labels=config.answer_type.describe_labels(config.labels),
        policy=_policies(config, exports),
        width=_width_row(config),
        guarantees=_guarantees(config, exports),
        package="offramp" if extra is None else f"'offramp[{extra}]'",
        backend_note="" if backend == "torch" else f"  # runs in {RUNTIMES[backend].title}" if extra else "",
        notes=_notes(config),
        mark=MARK,
        exits="\n".join(f"| {spec.layer} | {spec.head} | {spec.pooling} |" for spec in specs),
    )


def _calibrated(config: AdaptiveConfig, exports: Mapping[str, ExportSummary]) -> dict[str, dict[str, Any]]:
    """Return the calibrations by the title of their runtime."""
    entries = {"torch": config.calibrated} | {backend: export.calibrated for backend, export in exports.items()}
    return {RUNTIMES[name].title: entry for name in _order(config, entries) if (entry := entries[name])}


def _runtimes(config: AdaptiveConfig, exports: Mapping[str, ExportSummary]) -> str:
    """Return how to choose between the runtimes that the folder has weights for."""
    if not exports:
        return ""
    lines = ["", "The folder has weights for several runtimes:", "", "```python"]
    lines += [f'offramp.load("{PLACE}", backend="{name}")' for name in _order(config, ["torch", *exports])]
    return "\n".join([*lines, "```", ""])


def _order(config: AdaptiveConfig, backends: Iterable[str]) -> list[str]:
    """Return the backends, the one that the model was adapted for first."""
    first = (config.adapted_for or {}).get("backend", "torch")
    return sorted(backends, key=lambda backend: backend != first)


def _policies(config: AdaptiveConfig, exports: Mapping[str, ExportSummary]) -> str:
    """Return the exit policy; with calibrated exports, that of every backend."""
    policies = {"torch": config.exit_policy.describe()}
    policies |= {backend: export.policy.describe() for backend, export in exports.items() if export.policy is not None}
    if len(policies) == 1:
        return policies["torch"]
    return "; ".join(f"{RUNTIMES[backend].title}: {policies[backend]}" for backend in _order(config, policies))


def _guarantees(config: AdaptiveConfig, exports: Mapping[str, ExportSummary]) -> str:
    """Return the section with the guarantee of every backend."""
    calibrated = {"torch": config.calibrated} | {backend: export.calibrated for backend, export in exports.items()}
    entries = [(backend, entry) for backend in _order(config, calibrated) if (entry := calibrated[backend])]
    if not entries:
        return ""
    title = "Guarantee" if any(entry.get("guarantee") for _, entry in entries) else "Calibration"
    paragraphs = []
    for backend, entry in entries:
        precision = exports[backend].precision if backend in exports else "float32"
        heading = f'**{RUNTIMES[backend].title} {precision}** (`backend="{backend}"`): ' if exports else ""
        file = f"{backend}/{EVIDENCE}" if backend in exports else EVIDENCE
        paragraphs.append(f"{heading}{entry['sentence']} Details are in `{file}`.")
        paragraphs += _class_table(entry, config.answer_type.outcome_note)
    return f"\n## {title}\n\n" + "\n\n".join(paragraphs) + "\n"


def _class_table(entry: Mapping[str, Any], note: str) -> list[str]:
    """Return the table per class of a calibration as Markdown; none without classes and limits."""
    if not entry.get("classes") and not entry.get("limits"):
        return []
    rows = class_table_rows(entry.get("classes") or (), entry.get("limits") or ())
    lines = [HEAD, ["---"] * len(HEAD), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [note, "\n".join(f"| {' | '.join(line)} |" for line in lines)]


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
