"""The part of a model between two exits, as a module and as an ONNX graph."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offramp.core.stepper import ExitPoint
from offramp.encoders import EncoderState
from offramp.model.adaptive import AdaptiveModel

__all__ = ["OPSET", "Segment", "make_segments", "write_segment"]

OPSET = 17
ROWS, TOKENS = 2, 7  # shape of the tracing example; both dimensions are dynamic in the graph


class Segment(nn.Module):
    """Computes an exit's hidden states and logits from the hidden states after layer `start` (None: from tokens).

    The mask is true for real tokens.
    """

    def __init__(self, model: AdaptiveModel, start: int | None, point: ExitPoint):
        super().__init__()
        self.model, self.start, self.point = model, start, point
        self.eval()  # torch.onnx.export restores the mode of the outer module in all submodules

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs."""
        if self.start is not None:
            return ["hidden", "mask"]
        has_types = bool(getattr(self.model.config.backbone, "type_vocab_size", 0))
        return ["input_ids", "mask", *(["token_type_ids"] if has_types else [])]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs; the last segment has no `next`."""
        names = ["logits", *(["uncertainty"] if self.model.config.lte else [])]
        return names if self.point is self.model.exits.points[-1] else ["next", *names]

    def forward(self, first: Tensor, mask: Tensor, types: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the hidden states for the next segment (except for the last), the logits, and LTE's uncertainty."""
        family, encoder = self.model.config.family, self.model.backbone
        hidden = family.embed(encoder, first, mask, types) if self.start is None else first
        weights = (mask / mask.sum(1, keepdim=True)).unsqueeze(1).to(hidden.dtype)
        attention = family.attention(encoder, hidden, mask)
        state = EncoderState(hidden, attention, weights, None, self.start or 0, family.extra(encoder, hidden, mask))
        state = family.step(encoder, state, self.point.layer)
        logits, uncertainty = self.model.stepper.run_head(state, self.point)
        outputs = [logits] if uncertainty is None else [logits, uncertainty]
        return tuple(outputs if self.outputs[0] != "next" else [state.hidden, *outputs])

    def example(self) -> tuple[Tensor, ...]:
        """Return inputs for tracing."""
        mask = torch.ones(ROWS, TOKENS, dtype=torch.bool)
        if self.start is not None:
            return torch.randn(ROWS, TOKENS, self.model.config.hidden_size), mask
        ids = torch.randint(0, self.model.config.backbone.vocab_size, (ROWS, TOKENS))
        return (ids, mask, *([torch.zeros_like(ids)] if "token_type_ids" in self.inputs else []))


def make_segments(model: AdaptiveModel, points: Sequence[ExitPoint]) -> list[Segment]:
    """Return one segment per exit, each starting after the previous exit."""
    starts = pairwise([None, *(point.layer for point in points)])
    return [Segment(model, start, point) for (start, _), point in zip(starts, points, strict=True)]


def write_segment(segment: Segment, file: Path) -> None:
    """Write a segment as an ONNX graph for any number of rows and tokens."""
    dynamic: dict[str, Any] = {name: {0: "rows", 1: "tokens"} for name in [*segment.inputs, "next"]}
    dynamic |= {"logits": {0: "rows", 1: "tokens"} if segment.model.config.answer_type.per_token else {0: "rows"}}
    dynamic["uncertainty"] = {0: "rows"}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the deprecated exporter and Python numbers as constants
        torch.onnx.export(
            segment,
            segment.example(),
            str(file),
            input_names=segment.inputs,
            output_names=segment.outputs,
            dynamic_axes={name: dynamic[name] for name in [*segment.inputs, *segment.outputs]},
            opset_version=OPSET,
            dynamo=False,  # its graphs run 10 % faster than those of the new exporter
        )
