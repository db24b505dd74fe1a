"""`torch.ao.quantization.quantize_dynamic`: linear layers in int8, activations with one scale per batch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from offramp.core.machine import has_int8_dot_products
from offramp.errors import BadModel
from offramp.evaluation.benchmark.engines.engine import FullModel
from offramp.evaluation.benchmark.entry import Entry

__all__ = ["build", "open_model"]


def build(model: Any, texts: Any, folder: Path) -> list[Entry]:
    """Return one entry."""
    if "x86" not in torch.backends.quantized.supported_engines:
        raise BadModel("this build of torch has no int8 kernels for x86.")
    return [Entry("torch int8 (quantize_dynamic)", "full", "torch-int8", "int8")]


def open_model(entry: Entry, runner: Any, threads: int | None) -> FullModel:
    """Quantize the encoder of the runner."""
    from torch.ao import quantization
    from torch.ao.quantization import observer

    torch.backends.quantized.engine = "x86"  # faster than onednn
    # a scale per output channel: more accurate than the default, as fast; 7 bits of activations where 8 could overflow
    activation = observer.PlaceholderObserver.with_args(
        dtype=torch.quint8, quant_min=0, quant_max=255, is_dynamic=True, reduce_range=not has_int8_dot_products()
    )
    weight = observer.per_channel_weight_observer_range_neg_127_to_127
    config = quantization.QConfig(activation=activation, weight=weight)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # recommends torchao, which is a baseline, too
        quantization.quantize_dynamic(runner.stepper.encoder, {nn.Linear: config}, torch.qint8, inplace=True)  # type: ignore[no-untyped-call]
    full_model: FullModel = runner.stepper.full_model
    return full_model
