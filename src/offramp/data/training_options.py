"""Read the data options of a training run from its training.yaml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from offramp.errors import BadInput

__all__ = ["PATH_OPTIONS", "TRAINING_FILE", "read_options", "training_data_options"]

TRAINING_FILE = "training.yaml"
PATH_OPTIONS = ("data_dir", "dataset", "train_file", "dev_file")
FIELDS = ("task", *PATH_OPTIONS, "dataset_config", "text_column", "pair_column", "label_column", "metric")


def training_data_options(folder: Path) -> dict[str, str | None]:
    """Return the task, paths and columns of a training run, None where not set; empty without a training.yaml."""
    file = folder / TRAINING_FILE
    if not file.is_file():
        return {}
    options = read_options(file)
    for name in FIELDS:
        if not isinstance(options.get(name), str | None):
            raise BadInput(f"{file}: {name} must be a string, got {options[name]!r:.60}.")
    return {name: options.get(name) for name in FIELDS}


def read_options(file: Path) -> dict[str, Any]:
    """Return the options in a YAML or JSON file by name; `-` in names becomes `_`."""
    import yaml

    try:
        text = file.read_text("utf-8")
        options = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror}.") from err
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        raise BadInput(f"{file} is not valid YAML or JSON: {' '.join(str(err).split())[:200]}.") from err
    if not isinstance(options, dict):
        raise BadInput(f"{file} contains no options; write lines such as `recipe: joint`.")
    return {str(key).replace("-", "_"): value for key, value in options.items()}
