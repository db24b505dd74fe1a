"""A part of a model between two exits as a module of its own, and as an ONNX graph."""

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

__all__ = ["OPSET", "Segment", "segments_of", "write_segment"]

OPSET = 17
ROWS, TOKENS = 2, 7  # of the example that a graph is traced with; both are free in the graph


class Segment(nn.Module):
    """From the hidden states behind layer `start` (None: from tokens) to those behind an exit, and what the exit says.

    The encoder's own layers, stepped by its family as ever; the mask says which tokens are real.
    """

    def __init__(self, model: AdaptiveModel, start: int | None, point: ExitPoint):
        super().__init__()
        self.model, self.start, self.point = model, start, point
        self.eval()  # the exporter puts back the mode that it found, in all that is inside

    @property
    def inputs(self) -> list[str]:
        """Names of what it takes."""
        if self.start is not None:
            return ["hidden", "mask"]
        has_types = bool(getattr(self.model.config.backbone, "type_vocab_size", 0))
        return ["input_ids", "mask", *(["token_type_ids"] if has_types else [])]

    @property
    def outputs(self) -> list[str]:
        """Names of what it gives; the last segment has nobody to pass its states on to."""
        names = ["logits", *(["uncertainty"] if self.model.config.lte else [])]
        return names if self.point is self.model.exits.points[-1] else ["next", *names]

    def forward(self, first: Tensor, mask: Tensor, types: Tensor | None = None) -> tuple[Tensor, ...]:
        """The states to go on with (but for the last), the logits, LTE's estimate where there is one."""
        family, encoder = self.model.config.family, self.model.backbone
        hidden = family.embed(encoder, first, mask, types) if self.start is None else first
        weights = (mask / mask.sum(1, keepdim=True)).unsqueeze(1).to(hidden.dtype)
        attention = family.attention(encoder, hidden, mask)
        inside = EncoderState(hidden, attention, weights, None, self.start or 0, family.extra(encoder, hidden, mask))
        inside = family.step(encoder, inside, self.point.layer)
        logits, uncertainty = self.model.stepper.ask(inside, self.point)
        said = [logits] if uncertainty is None else [logits, uncertainty]
        return tuple(said if self.outputs[0] != "next" else [inside.hidden, *said])

    def example(self) -> tuple[Tensor, ...]:
        """Something to trace it with."""
        mask = torch.ones(ROWS, TOKENS, dtype=torch.bool)
        if self.start is not None:
            return torch.randn(ROWS, TOKENS, self.model.config.hidden_size), mask
        ids = torch.randint(0, self.model.config.backbone.vocab_size, (ROWS, TOKENS))
        return (ids, mask, *([torch.zeros_like(ids)] if "token_type_ids" in self.inputs else []))


def segments_of(model: AdaptiveModel, points: Sequence[ExitPoint]) -> list[Segment]:
    """One per exit, each from where the one before ends."""
    starts = pairwise([None, *(point.layer for point in points)])
    return [Segment(model, start, point) for (start, _), point in zip(starts, points, strict=True)]


def write_segment(segment: Segment, file: Path) -> None:
    """As an ONNX graph of any number of rows and tokens."""
    free: dict[str, Any] = {name: {0: "rows", 1: "tokens"} for name in [*segment.inputs, "next"]}
    free |= {"logits": {0: "rows", 1: "tokens"} if segment.model.config.answer_type.per_token else {0: "rows"}}
    free["uncertainty"] = {0: "rows"}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this exporter is old, and that Python numbers become constants
        torch.onnx.export(
            segment,
            segment.example(),
            str(file),
            input_names=segment.inputs,
            output_names=segment.outputs,
            dynamic_axes={name: free[name] for name in [*segment.inputs, *segment.outputs]},
            opset_version=OPSET,
            dynamo=False,  # its graphs run 10 % faster than those of the new one
        )
