"""What a model folder tells of the data that it was trained on: the part of training.yaml that others need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offramp.errors import BadInput

__all__ = ["FILE", "PATHS", "data_of_training"]

FILE = "training.yaml"
PATHS = ("data_dir", "dataset", "train_file", "dev_file")
FIELDS = ("task", *PATHS, "dataset_config", "text_column", "pair_column", "label_column", "metric")


def data_of_training(folder: Path) -> dict[str, str | None]:
    """Task, places and columns, None where there was none; empty where the folder tells nothing."""
    file = folder / FILE
    if not file.is_file():
        return {}
    saved = _read(file)
    for name in FIELDS:
        if not isinstance(saved.get(name), str | None):
            raise BadInput(f"{file}: {name} is {saved[name]!r:.60}, expected text.")
    return {name: saved.get(name) for name in FIELDS}


def _read(file: Path) -> dict[str, Any]:
    import yaml

    try:
        saved = yaml.safe_load(file.read_text("utf-8"))
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror}.") from err
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        raise BadInput(f"{file} is not YAML: {' '.join(str(err).split())[:200]}.") from err
    if not isinstance(saved, dict):
        raise BadInput(f"{file} holds no options; it is what a training wrote.")
    return {str(key).replace("-", "_"): value for key, value in saved.items()}
