"""The modules of a transformer layer under one set of names for all families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

__all__ = ["LayerParts", "bert_parts", "distilbert_parts", "mpnet_parts"]


@dataclass(frozen=True)
class LayerParts:
    """The modules of a post-LayerNorm layer: attention, then two linear layers, each with its residual."""

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
        """Channels per head."""
        return self.query.out_features // self.heads


def bert_parts(layer: Any) -> LayerParts:
    """Return the parts of a layer of BERT, RoBERTa, XLM-R, ELECTRA or ElasticBERT."""
    inner, outer = layer.attention.self, layer.attention.output
    return _make_parts(layer, (inner.query, inner.key, inner.value, outer.dense), inner, outer)


def _make_parts(
    layer: Any, linears: tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear], inner: Any, outer: Any
) -> LayerParts:
    """`inner` has the attention's dropout, `outer` its output's dropout and LayerNorm; the rest is as in BERT."""
    return LayerParts(
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


def mpnet_parts(layer: Any) -> LayerParts:
    """Return the parts of an MPNet layer: as in BERT, except for the names in its attention."""
    inner, outer = layer.attention.attn, layer.attention
    return _make_parts(layer, (inner.q, inner.k, inner.v, inner.o), inner, outer)


def distilbert_parts(layer: Any) -> LayerParts:
    """Return the parts of a DistilBERT layer."""
    inner, ffn = layer.attention, layer.ffn
    return LayerParts(
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
