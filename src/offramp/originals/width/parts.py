"""A transformer layer's parts under one set of names, whatever its family calls them; modules stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

__all__ = ["Parts", "like_bert", "like_distilbert", "like_mpnet"]


@dataclass(frozen=True)
class Parts:
    """What a layer behind a LayerNorm is made of: attention, then two linear layers, each with its residual."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear
    attention_dropout: float
    out_dropout: nn.Module
    attention_norm: nn.Module
    up: nn.Linear
    act: Callable[[Tensor], Tensor]
    down: nn.Linear
    down_dropout: nn.Module
    norm: nn.Module
    heads: int

    @property
    def head_size(self) -> int:
        """Channels of one head."""
        return self.query.out_features // self.heads


def like_bert(layer: Any) -> Parts:
    """BERT, RoBERTa, XLM-R, ELECTRA, ElasticBERT."""
    inner, outer = layer.attention.self, layer.attention.output
    return _behind(layer, (inner.query, inner.key, inner.value, outer.dense), inner, outer)


def _behind(layer: Any, linears: tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear], inner: Any, outer: Any) -> Parts:
    """A layer whose attention keeps its dropout in `inner`, its residual's in `outer`, and whose rest is BERT's."""
    return Parts(
        *linears,
        float(inner.dropout.p),
        outer.dropout,
        outer.LayerNorm,
        layer.intermediate.dense,
        layer.intermediate.intermediate_act_fn,
        layer.output.dense,
        layer.output.dropout,
        layer.output.LayerNorm,
        int(inner.num_attention_heads),
    )


def like_mpnet(layer: Any) -> Parts:
    """MPNet: BERT's layers, but for the names in its attention."""
    inner, outer = layer.attention.attn, layer.attention
    return _behind(layer, (inner.q, inner.k, inner.v, inner.o), inner, outer)


def like_distilbert(layer: Any) -> Parts:
    """DistilBERT."""
    inner, ffn = layer.attention, layer.ffn
    return Parts(
        inner.q_lin,
        inner.k_lin,
        inner.v_lin,
        inner.out_lin,
        float(inner.dropout.p),
        nn.Identity(),
        layer.sa_layer_norm,
        ffn.lin1,
        ffn.activation,
        ffn.lin2,
        ffn.dropout,
        layer.output_layer_norm,
        int(inner.n_heads),
    )
