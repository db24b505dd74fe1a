"""`torch.compile` with dynamic shapes and frozen weights, in bfloat16 if the CPU supports it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from offramp.core.machine import half_precision
from offramp.errors import BadModel
from offramp.evaluation.benchmark.engines.engine import FullModel
from offramp.evaluation.benchmark.entry import Entry

__all__ = ["build", "check_compiler", "compile_encoder", "open_model"]


def build(model: Any, texts: Any, folder: Path) -> list[Entry]:
    """Return one entry, in the fastest floating-point precision of this CPU."""
    check_compiler()
    dtype = "bfloat16" if half_precision()["bfloat16"] else "float32"
    return [Entry(f"torch.compile {dtype}", "full", "compile", dtype)]


def check_compiler() -> None:
    """Raise if there is no C++ compiler, which `torch.compile` needs on a CPU."""
    if not any(map(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "clang++")))):
        raise BadModel("torch.compile needs a C++ compiler, such as g++.")


def compile_encoder(runner: Any) -> FullModel:
    """Compile the encoder in place; it is compiled in the first calls."""
    stepper = runner.stepper
    stepper.encoder.compile(dynamic=True, options={"freezing": True})
    full_model: FullModel = stepper.full_model
    return full_model


def open_model(entry: Entry, runner: Any, threads: int | None) -> FullModel:
    """Compile the encoder of the runner."""
    return compile_encoder(runner)
