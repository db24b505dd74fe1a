"""torchao: linear layers in int8, activations with a scale per token, compiled with `torch.compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offramp.evaluation.benchmark.engines.engine import FullModel
from offramp.evaluation.benchmark.engines.torch_compile import check_compiler, compile_encoder
from offramp.evaluation.benchmark.entry import Entry

__all__ = ["build", "open_model"]


def build(model: Any, texts: Any, folder: Path) -> list[Entry]:
    """Return one entry."""
    check_compiler()
    return [Entry("torchao int8, compiled", "full", "torchao", "int8")]


def open_model(entry: Entry, runner: Any, threads: int | None) -> FullModel:
    """Quantize and compile the encoder of the runner."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    quantize_(runner.stepper.encoder, Int8DynamicActivationInt8WeightConfig())
    return compile_encoder(runner)
