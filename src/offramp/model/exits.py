"""Heads on layers: each reads hidden states and answers."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from offramp.core.stepper import ExitPoint
from offramp.encoders import EncoderState, HeadSpec
from offramp.model.config import AdaptiveConfig, ExitSpec

__all__ = ["Exits", "Head"]

NORM_EPS = 1e-5  # of the norm before the queries, where the family has none of its own to start from


class Queries(nn.Module):
    """Learned queries, each with a softmax over the real tokens, that say which tokens count.

    A mean throws away which tokens matter; this costs one or two per cent of a layer and keeps it.
    """

    def __init__(self, size: int, queries: int, width: int):
        super().__init__()
        self.scores = nn.Linear(size, queries)
        self.values = nn.Linear(size, width)

    def forward(self, hidden: Tensor, weights: Tensor | None) -> Tensor:
        """What the queries read, one behind the other, (rows, queries × width)."""
        scores = self.scores(hidden).transpose(1, 2)  # (rows, queries, tokens)
        if weights is not None:
            scores = scores.masked_fill(weights <= 0, torch.finfo(scores.dtype).min)
        read = torch.bmm(torch.softmax(scores, dim=-1), self.values(hidden))
        return nn.functional.gelu(read.flatten(1))


class Head(nn.Module):
    """One exit: reads the first token, the mean over real tokens, every token, or with queries of its own; classifies.

    `features` is the classifier's input, which LTE reads too; `forward` is the logits.
    """

    def __init__(self, size: int, labels: int, spec: ExitSpec, shape: HeadSpec):
        super().__init__()
        self.pooling = spec.pooling
        self.temperature = spec.temperature
        self.input_norm = _norm(size, shape.input_norm_eps, shape.norm_bias)
        self.input_dropout = nn.Dropout(shape.input_dropout)
        self.dense = nn.Linear(size, size, bias=shape.dense_bias) if shape.dense else None
        self.activation = ACT2FN[shape.activation]
        self.dense_norm = _norm(size, shape.dense_norm_eps, shape.norm_bias)
        self.dropout = nn.Dropout(shape.dropout)
        self.reader = Queries(size, spec.queries, spec.width) if spec.pooling == "queries" else None
        self.classifier = nn.Linear(size if self.reader is None else spec.queries * spec.width, labels)
        self.ramp: Head | None = None  # a converted checkpoint's extra head on the last layer

    def features(self, inside: EncoderState, shared: nn.Module | None = None) -> Tensor:
        """The classifier's input, (rows, hidden size), or (rows, tokens, hidden size) where every token is read."""
        hidden = inside.hidden[:, :1] if self.pooling == "first" else inside.hidden
        if self.input_norm is not None:
            hidden = self.input_norm(hidden)
        if self.pooling == "tokens":
            read = hidden
        elif self.reader is not None:
            read = self.reader(hidden, inside.weights)
        else:
            read = hidden[:, 0] if self.pooling == "first" else _mean(hidden, inside.weights)
        if shared is not None:
            read = shared(read)
        if self.dense is not None:
            read = self.activation(self.dense(self.input_dropout(read)))
            if self.dense_norm is not None:
                read = self.dense_norm(read)
        return self.dropout(read) if self.training else read

    def forward(self, features: Tensor) -> Tensor:
        """The logits, (rows, classes), or (rows, tokens, classes)."""
        logits = self.classifier(features)
        if self.temperature == 1.0:
            return logits
        # in float32 at least, as temperatures were fitted on a trace
        return (logits if logits.dtype == torch.float64 else logits.float()) / self.temperature


class SharedPooler(nn.Module):
    """One dense tanh layer for all exits (PABEE)."""

    def __init__(self, size: int):
        super().__init__()
        self.dense = nn.Linear(size, size)

    def forward(self, read: Tensor) -> Tensor:
        """The pooled vector, (rows, hidden size)."""
        return torch.tanh(self.dense(read))


class Exits(nn.ModuleDict):
    """The heads by layer, `exits.<layer>`; beside them `shared` (a pooler for all) and `lte` where wanted."""

    def __init__(self, config: AdaptiveConfig):
        super().__init__()
        specs = config.exit_specs
        for spec in specs:
            shape = _shape(config, spec, spec is specs[-1])
            self[str(spec.layer)] = Head(config.hidden_size, config.num_labels, spec, shape)
        if any(spec.head == "shared" for spec in specs):
            self["shared"] = SharedPooler(config.hidden_size)
        if config.lte:
            self["lte"] = nn.Linear(config.hidden_size, 1)
        if config.ramp:
            ramp = ExitSpec(specs[-1].layer, "pooler", "first")
            shape = _shape(config, ramp, is_last=True)
            self.head(specs[-1].layer).ramp = Head(config.hidden_size, config.num_labels, ramp, shape)
        self.points = config.exit_points
        self.shares_pooler = tuple(spec.head == "shared" for spec in specs) + (False,) * config.ramp_answers

    def at(self, point: ExitPoint) -> Head:
        """The head of an exit: its layer's, or that layer's ramp where two exits sit on it."""
        head = self.head(point.layer)
        return head.ramp if point.is_ramp and head.ramp is not None else head

    def untrained(self) -> tuple[int, ...]:
        """The layers whose heads are as they were made: biases start at zero, and no training leaves them there."""
        heads = {point.layer: self.head(point.layer) for point in self.points}
        return tuple(layer for layer, head in heads.items() if not head.classifier.bias.any())

    def head(self, layer: int) -> Head:
        """The head on a layer."""
        head = self[str(layer)]
        assert isinstance(head, Head)
        return head


def _shape(config: AdaptiveConfig, spec: ExitSpec, is_last: bool) -> HeadSpec:
    family, backbone = config.family, config.backbone
    own = family.token_head_shape(backbone) if config.answer_type.per_token else family.head_shape(backbone)
    shape = own if spec.head == "family" else HeadSpec(dense=spec.head == "pooler", dropout=own.dropout)
    if family.pre_norm and not is_last:
        return replace(shape, input_norm_eps=float(backbone.norm_eps), norm_bias=bool(backbone.norm_bias))
    return replace(shape, input_norm_eps=NORM_EPS) if spec.head == "attention" else shape


def _norm(size: int, eps: float | None, bias: bool) -> nn.LayerNorm | None:
    return None if eps is None else nn.LayerNorm(size, eps=eps, bias=bias)


def _mean(hidden: Tensor, weights: Tensor | None) -> Tensor:
    return hidden.mean(1) if weights is None else torch.bmm(weights, hidden).squeeze(1)
