"""ONNX Runtime as its guides describe it: transformers' graph, the transformer optimizer, dynamic int8."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from offramp.evaluation.benchmark.entry import Entry
from offramp.exports.segments import OPSET

__all__ = ["build"]

METHODS = {"": False, ", per channel": True}  # of `quantize_dynamic`: in the entry's name, the option `per_channel`


def build(model: Any, texts: Any, folder: Path) -> list[Entry]:
    """Write the optimized graph, and quantize all of it with and without a scale per channel."""
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.transformers import optimizer

    plain, optimized = folder / "transformers.onnx", folder / "optimized.onnx"
    _export(model, plain)
    backbone, entries = model.config.backbone, []
    with _quiet():
        fused = optimizer.optimize_model(
            str(plain), "bert", num_heads=backbone.num_attention_heads, hidden_size=backbone.hidden_size
        )
        fused.save_model_to_file(str(optimized))
        for suffix, per_channel in METHODS.items():
            file = folder / f"optimized-int8{'-channel' if per_channel else ''}.onnx"
            defaults = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # of outputs of fused operators
            quantize_dynamic(optimized, file, per_channel=per_channel, extra_options=defaults)
            name = f"ONNX Runtime optimizer, int8-dynamic{suffix}"
            entries.append(Entry(name, "full", "onnx", "int8-optimizer", str(file)))
    return entries


class _Whole(nn.Module):
    """The full model with the inputs of a first segment, in the forward pass of transformers."""

    def __init__(self, stepper: Any, encoder: nn.Module):
        super().__init__()
        self.stepper, self.encoder, self.heads = stepper, encoder, stepper.heads
        self.eval()

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        inputs = {"input_ids": ids, "attention_mask": mask.long()}
        hidden = self.encoder(**inputs if types is None else inputs | {"token_type_ids": types})[0]
        logits: Tensor = self.stepper.classify(hidden, mask.long())
        return logits


def _export(model: Any, file: Path) -> None:
    encoder = copy.deepcopy(model.backbone)
    encoder.set_attn_implementation("eager")  # the optimizer does not recognise other attention
    has_types = bool(getattr(model.config.backbone, "type_vocab_size", 0))
    names = ["input_ids", "mask", *(["token_type_ids"] if has_types else [])]
    ids = torch.ones(2, 7, dtype=torch.long)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Whole(model.stepper, encoder),
            (ids, ids.bool(), *([ids * 0] if has_types else [])),
            str(file),
            input_names=names,
            output_names=["logits"],
            dynamic_axes={name: {0: "rows", 1: "tokens"} for name in names} | {"logits": {0: "rows"}},
            opset_version=OPSET,
            dynamo=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the root logger, to which onnxruntime reports every step."""
    root, silent = logging.getLogger(), logging.NullHandler()
    level = root.level
    root.addHandler(silent)
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(silent)
