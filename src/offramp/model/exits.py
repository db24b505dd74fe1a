"""Exit heads: classifiers on the hidden states of a layer."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from offramp.core.stepper import ExitPoint
from offramp.encoders import EncoderState, HeadSpec
from offramp.model.config import AdaptiveConfig
from offramp.model.exit_spec import ExitSpec

__all__ = ["Exits", "Head"]

NORM_EPS = 1e-5  # eps of the LayerNorm before the queries
INTERACTION_WIDTH = 16  # of the projections of an interaction
LOWEST_SIMILARITY = -100.0  # of a token to itself and to padding


class Convolution(nn.Module):
    """A narrow convolution over each token and its two neighbours; tokens beyond the ends of a text count as zeros.

    It gives early layers, whose tokens have seen little of each other, some context. Written as a linear layer on
    shifted copies, so that int8 exports quantize it like all other linear layers.
    """

    def __init__(self, size: int, width: int):
        super().__init__()
        self.reduce = nn.Linear(size, width)
        self.mix = nn.Linear(3 * width, width)

    def forward(self, hidden: Tensor, weights: Tensor | None) -> Tensor:
        """Return the tokens in context, (rows, tokens, width)."""
        reduced = self.reduce(hidden)
        if weights is not None:  # padding must not differ from the end of a text
            reduced = reduced * (weights > 0).to(reduced.dtype).transpose(1, 2)
        padded = nn.functional.pad(reduced, (0, 0, 1, 1))
        return nn.functional.gelu(self.mix(torch.cat([padded[:, :-2], reduced, padded[:, 2:]], dim=-1)))


class Interaction(nn.Module):
    """The similarity of each token to the most similar other token of the pair, by several learned projections.

    For experiments with rerankers; `adapt` does not use it. It shows early layers which words of a query a document
    has, before the encoder has compared them (ColBERT's MaxSim, arXiv:2004.12832, within a row). The projections start
    equal, so that equal tokens match from the beginning.
    """

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.left = nn.Linear(size, heads * INTERACTION_WIDTH)
        self.right = nn.Linear(size, heads * INTERACTION_WIDTH)
        self.right.load_state_dict(self.left.state_dict())

    def forward(self, hidden: Tensor, weights: Tensor | None) -> Tensor:
        """Return the largest similarity of each token per projection, (rows, tokens, heads)."""
        rows, tokens = hidden.shape[:2]
        shape = (rows, tokens, self.heads, INTERACTION_WIDTH)
        left, right = (project(hidden).view(shape).transpose(1, 2) for project in (self.left, self.right))
        similarity = left @ right.transpose(2, 3) * INTERACTION_WIDTH**-0.5  # (rows, heads, tokens, tokens)
        position = torch.arange(tokens, device=hidden.device)
        ignored = (position.unsqueeze(0) == position.unsqueeze(1)).unsqueeze(0).unsqueeze(0)
        if weights is not None:
            ignored = ignored | (weights <= 0).unsqueeze(1)
        return similarity.masked_fill(ignored, LOWEST_SIMILARITY).amax(-1).transpose(1, 2)


class Queries(nn.Module):
    """Attention pooling: learned queries, each with a softmax over the real tokens.

    The tokens may first pass a convolution, and get their similarities to the other tokens. The cost is 1–2 % of a
    transformer layer, 4–6 % with a convolution of 128 channels, and as much for an interaction of 8 heads.
    """

    def __init__(self, size: int, queries: int, width: int, convolution: int = 0, interaction: int = 0):
        super().__init__()
        self.convolution = Convolution(size, convolution) if convolution else None
        self.interaction = Interaction(size, interaction) if interaction else None
        self.scores = nn.Linear((convolution or size) + interaction, queries)
        self.values = nn.Linear((convolution or size) + interaction, width)

    def forward(self, hidden: Tensor, weights: Tensor | None) -> Tensor:
        """Return the concatenated results of the queries, (rows, queries × width)."""
        similarities = None if self.interaction is None else self.interaction(hidden, weights)
        if self.convolution is not None:
            hidden = self.convolution(hidden, weights)
        if similarities is not None:
            hidden = torch.cat([hidden, similarities.to(hidden.dtype)], dim=-1)
        scores = self.scores(hidden).transpose(1, 2)  # (rows, queries, tokens)
        if weights is not None:
            scores = scores.masked_fill(weights <= 0, torch.finfo(scores.dtype).min)
        pooled = torch.bmm(torch.softmax(scores, dim=-1), self.values(hidden))
        return nn.functional.gelu(pooled.flatten(1))


class Head(nn.Module):
    """An exit head: pools the hidden states (first token, mean, queries, or every token) and classifies.

    `features` returns the classifier's input, which the learning-to-exit module reads too; `forward` the logits.
    """

    def __init__(self, size: int, labels: int, spec: ExitSpec, head_spec: HeadSpec):
        super().__init__()
        self.pooling = spec.pooling
        self.temperature = spec.temperature
        self.input_norm = _norm(size, head_spec.input_norm_eps, head_spec.norm_bias)
        self.input_dropout = nn.Dropout(head_spec.input_dropout)
        self.dense = nn.Linear(size, size, bias=head_spec.dense_bias) if head_spec.dense else None
        self.activation = ACT2FN[head_spec.activation]
        self.dense_norm = _norm(size, head_spec.dense_norm_eps, head_spec.norm_bias)
        self.dropout = nn.Dropout(head_spec.dropout)
        has_queries, sizes = spec.pooling == "queries", (spec.queries, spec.width, spec.convolution, spec.interaction)
        self.reader = Queries(size, *sizes) if has_queries else None
        per_token = spec.convolution if spec.pooling == "tokens" else 0
        self.convolution = Convolution(size, per_token) if per_token else None
        self.classifier = nn.Linear(size + per_token if self.reader is None else spec.queries * spec.width, labels)
        self.ramp: Head | None = None  # a converted checkpoint's extra head on the last layer

    def features(self, state: EncoderState, shared: nn.Module | None = None) -> Tensor:
        """Return the classifier's input, (rows, hidden size), or (rows, tokens, hidden size) for per-token heads."""
        hidden = state.hidden[:, :1] if self.pooling == "first" else state.hidden
        if self.input_norm is not None:
            hidden = self.input_norm(hidden)
        if self.pooling == "tokens":
            pooled = hidden
        elif self.reader is not None:
            pooled = self.reader(hidden, state.weights)
        else:
            pooled = hidden[:, 0] if self.pooling == "first" else _mean(hidden, state.weights)
        if shared is not None:
            pooled = shared(pooled)
        if self.dense is not None:
            pooled = self.activation(self.dense(self.input_dropout(pooled)))
            if self.dense_norm is not None:
                pooled = self.dense_norm(pooled)
        if self.convolution is not None:
            pooled = torch.cat([pooled, self.convolution(pooled, state.weights)], dim=-1)
        return self.dropout(pooled) if self.training else pooled

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, (rows, classes) or (rows, tokens, classes)."""
        logits = self.classifier(features)
        if self.temperature == 1.0:
            return logits
        # at least float32, in which temperatures are fitted
        return (logits if logits.dtype == torch.float64 else logits.float()) / self.temperature


class SharedPooler(nn.Module):
    """A dense tanh layer shared by all exits (PABEE)."""

    def __init__(self, size: int):
        super().__init__()
        self.dense = nn.Linear(size, size)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return the transformed vector, (rows, hidden size)."""
        return torch.tanh(self.dense(pooled))


class Exits(nn.ModuleDict):
    """The heads by layer, `exits.<layer>`, and optionally `shared` (the shared pooler) and `lte`."""

    def __init__(self, config: AdaptiveConfig):
        super().__init__()
        specs = config.exit_specs
        for spec in specs:
            head_spec = _head_spec(config, spec, spec is specs[-1])
            self[str(spec.layer)] = Head(config.hidden_size, config.num_labels, spec, head_spec)
        if any(spec.head == "shared" for spec in specs):
            self["shared"] = SharedPooler(config.hidden_size)
        if config.lte:
            self["lte"] = nn.Linear(config.hidden_size, 1)
        if config.ramp:
            ramp = ExitSpec(specs[-1].layer, "pooler", "first")
            head_spec = _head_spec(config, ramp, is_last=True)
            self.head(specs[-1].layer).ramp = Head(config.hidden_size, config.num_labels, ramp, head_spec)
        self.points = config.exit_points
        self.shares_pooler = tuple(spec.head == "shared" for spec in specs) + (False,) * config.ramp_answers

    def at(self, point: ExitPoint) -> Head:
        """Return the head of an exit; for a ramp, the extra head of its layer."""
        head = self.head(point.layer)
        return head.ramp if point.is_ramp and head.ramp is not None else head

    def untrained_layers(self) -> tuple[int, ...]:
        """Return the layers whose heads have not been trained: the bias of their classifier is still zero."""
        heads = {point.layer: self.head(point.layer) for point in self.points}
        return tuple(layer for layer, head in heads.items() if not head.classifier.bias.any())

    def head(self, layer: int) -> Head:
        """Return the head on a layer."""
        head = self[str(layer)]
        assert isinstance(head, Head)
        return head


def _head_spec(config: AdaptiveConfig, spec: ExitSpec, is_last: bool) -> HeadSpec:
    family, backbone = config.family, config.backbone
    original = family.token_head_spec(backbone) if config.answer_type.per_token else family.head_spec(backbone)
    new = original if spec.head == "family" else HeadSpec(dense=spec.head == "pooler", dropout=original.dropout)
    if family.pre_norm and not is_last:
        return replace(new, input_norm_eps=float(backbone.norm_eps), norm_bias=bool(backbone.norm_bias))
    return replace(new, input_norm_eps=NORM_EPS) if spec.head == "attention" else new


def _norm(size: int, eps: float | None, bias: bool) -> nn.LayerNorm | None:
    return None if eps is None else nn.LayerNorm(size, eps=eps, bias=bias)


def _mean(hidden: Tensor, weights: Tensor | None) -> Tensor:
    return hidden.mean(1) if weights is None else torch.bmm(weights, hidden).squeeze(1)
