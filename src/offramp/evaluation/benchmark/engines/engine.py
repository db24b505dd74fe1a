"""A library that runs the full model: what it needs, and the module that converts and opens a model."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from offramp.core.batch import Batch
from offramp.evaluation.benchmark.entry import Entry

__all__ = ["Engine", "FullModel", "log_skipped"]

logger = logging.getLogger("offramp")

FullModel = Callable[[Batch], Tensor]
"""Returns the logits of a batch."""


@dataclass(frozen=True)
class Engine:
    """A library, with a module that has two functions.

    `build(model, texts, folder)` writes converted models to `folder` and returns entries; it raises if the library
    does not support the model. `open_model(entry, runner, threads)` returns a `FullModel`.
    """

    name: str
    title: str
    module: str
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)  # modules to import: names for pip

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [package for module, package in self.packages.items() if importlib.util.find_spec(module) is None]

    def build(self, model: Any, texts: Any, folder: Path) -> list[Entry]:
        """Return the entries of a model; none, with a line in the log, if the library cannot run it."""
        if missing := self.missing():
            verb = "are" if len(missing) > 1 else "is"
            reason = f"{' and '.join(missing)} {verb} not installed (pip install {' '.join(missing)})."
            logger.info("Skipping %s: %s", self.title, reason)
            return []
        try:
            entries: list[Entry] = importlib.import_module(self.module).build(model, texts, folder)
        except Exception as err:  # of a library that is not required
            log_skipped(self.title, err)
            return []
        return entries

    def open_model(self, entry: Entry, runner: Any, threads: int | None) -> FullModel:
        """Load an entry; the runner has the model in torch."""
        opened: FullModel = importlib.import_module(self.module).open_model(entry, runner, threads)
        return opened


def log_skipped(title: str, error: Exception) -> None:
    """Log in one line why a baseline is left out."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    logger.info("Skipping %s: %.300s", title, reason)
