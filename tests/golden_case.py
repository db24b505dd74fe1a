"""A golden case: a folder that an original code base made, and how its numbers are compared."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from offramp import AdaptiveModel
from offramp.originals.convert import ConvertOptions, convert, read
from offramp.originals.convert.checkpoint import Checkpoint

__all__ = ["Case", "Check", "claim", "close", "same"]


@dataclass
class Case:
    """One golden folder, which of its arrays a check has used, and why some, by their beginning, cannot be checked."""

    folder: Path
    scratch: Path  # a folder for the models that the checkpoint is converted to
    used: set[str] = field(default_factory=set)
    differs: dict[str, str] = field(default_factory=dict)

    @cached_property
    def about(self) -> dict[str, Any]:
        about: dict[str, Any] = json.loads((self.folder / "case.json").read_text("utf-8"))
        return about

    @cached_property
    def expected(self) -> dict[str, Tensor]:
        return load_file(self.folder / "expected.safetensors")

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        return load_file(self.folder / "inputs.safetensors")

    @property
    def batch(self) -> dict[str, Tensor]:
        return {
            key: self.inputs[key] for key in ("input_ids", "attention_mask", "token_type_ids") if key in self.inputs
        }

    @property
    def depth(self) -> int:
        return int(self.about["num_layers"])

    def take(self, name: str) -> Tensor | None:
        """An expected array, if the case has it; noted as checked."""
        if name in self.expected:
            self.used.add(name)
        return self.expected.get(name)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return read(self.folder / "checkpoint")

    def model(self, **options: Any) -> AdaptiveModel:
        """The checkpoint, converted and loaded as a user would; converted once, loaded anew each time."""
        made = self.scratch / ("-".join(f"{key}-{value}" for key, value in options.items()) or "plain")
        if not made.exists():
            convert(self.folder / "checkpoint", made, options=ConvertOptions(**options))
        return AdaptiveModel.from_pretrained(made)


Check = tuple[str, bool, str]


def close(name: str, got: Tensor, wanted: Tensor) -> Check:
    """Floats within the golden tolerance; where the original gave NaN there is nothing to match."""
    if got.shape != wanted.shape:
        return name, False, f"shape {tuple(got.shape)} instead of {tuple(wanted.shape)}"
    real = ~torch.isnan(wanted)
    off = (got - wanted)[real].abs()
    fits = bool((off <= 1e-4 + 1e-3 * wanted[real].abs()).all()) and not bool(torch.isnan(got).any())
    return name, fits, f"off by {float(off.max()) if off.numel() else 0:.1e}"


def same(name: str, got: Tensor, wanted: Tensor) -> Check:
    """Whole numbers, exactly."""
    fits = got.shape == wanted.shape and torch.equal(got.long(), wanted.long())
    return name, fits, "equal" if fits else f"{got.tolist()} instead of {wanted.tolist()}"


def claim(name: str, holds: bool, detail: str = "") -> Check:
    """Something that is so or not."""
    return name, holds, detail or ("holds" if holds else "does not hold")
