"""What a model folder tells of the data that it was trained on: the part of training.yaml that others need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from offramp.errors import BadInput

__all__ = ["FILE", "PATHS", "data_of_training", "read_options"]

FILE = "training.yaml"
PATHS = ("data_dir", "dataset", "train_file", "dev_file")
FIELDS = ("task", *PATHS, "dataset_config", "text_column", "pair_column", "label_column", "metric")


def data_of_training(folder: Path) -> dict[str, str | None]:
    """Task, places and columns, None where there was none; empty where the folder tells nothing."""
    file = folder / FILE
    if not file.is_file():
        return {}
    saved = read_options(file)
    for name in FIELDS:
        if not isinstance(saved.get(name), str | None):
            raise BadInput(f"{file}: {name} is {saved[name]!r:.60}, expected text.")
    return {name: saved.get(name) for name in FIELDS}


def read_options(file: Path) -> dict[str, Any]:
    """What a YAML or JSON file of options holds, by name; `-` and `_` are the same."""
    import yaml

    try:
        text = file.read_text("utf-8")
        saved = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror}.") from err
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        raise BadInput(f"{file} is neither YAML nor JSON: {' '.join(str(err).split())[:200]}.") from err
    if not isinstance(saved, dict):
        raise BadInput(f"{file} holds no options; write lines such as `recipe: joint`.")
    return {str(key).replace("-", "_"): value for key, value in saved.items()}
