"""DeBERTa-v2 and v3: disentangled relative positions, and in some sizes a convolution beside layer 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from offramp.encoders.family import EncoderState, Family, HeadSpec, OwnHead

__all__ = ["DebertaV2"]


class DebertaV2(Family):
    """DeBERTa-v2/v3: every layer reads relative positions and their embeddings."""

    name: ClassVar[str] = "deberta-v2"

    def own_head(self, config: PreTrainedConfig) -> OwnHead:
        """A context pooler outside the encoder, and a linear layer."""
        return OwnHead(dense="pooler.dense", classifier="classifier")

    def head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """Dropout, dense, the pooler's activation, dropout."""
        own = getattr(config, "cls_dropout", None)
        return HeadSpec(
            dense=True,
            activation=config.pooler_hidden_act,
            input_dropout=float(config.pooler_dropout),
            dropout=float(config.hidden_dropout_prob if own is None else own),
        )

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Embeddings; padding is set to zero."""
        types = torch.zeros_like(ids) if types is None else types
        return encoder.embeddings(input_ids=ids, token_type_ids=types, mask=mask)

    def attention(self, encoder: Any, hidden: Tensor, mask: Tensor | None) -> Tensor | None:
        """A Boolean mask (rows or 1, 1, length, length); these layers take no None."""
        if mask is None:
            return torch.ones((1, 1, hidden.shape[1], hidden.shape[1]), dtype=torch.bool, device=hidden.device)
        return encoder.encoder.get_attention_mask(mask.long()).bool()

    def extra(self, encoder: Any, hidden: Tensor, mask: Tensor | None) -> Mapping[str, Tensor]:
        """Relative positions (1, length, length) and their embeddings; for the convolution its inputs."""
        extra: dict[str, Tensor] = {}
        positions = encoder.encoder.get_rel_pos(hidden)
        if positions is not None:
            extra |= {"positions": positions, "embeddings": encoder.encoder.get_rel_embedding()}
        if encoder.encoder.conv is not None:
            ones = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
            extra |= {"embedded": hidden, "mask": ones if mask is None else mask.long()}
        return extra

    def trim_extra(self, extra: Mapping[str, Tensor], rows: Tensor, length: int, depth: int) -> Mapping[str, Tensor]:
        """Positions are cut; the convolution's inputs, too, until layer 1 has used them up."""
        kept: dict[str, Tensor] = {}
        if "positions" in extra:
            kept = {"positions": extra["positions"][:, :length, :length], "embeddings": extra["embeddings"]}
        if depth == 0:
            each = (name for name in ("embedded", "mask") if name in extra)
            kept |= {name: extra[name][:, :length].index_select(0, rows) for name in each}
        return kept

    def layer(self, encoder: Any, index: int, inside: EncoderState) -> Tensor:
        """One transformer layer; behind the first the convolution, where there is one."""
        extra = inside.extra
        hidden: Tensor = self.block(encoder, index)(
            inside.hidden,
            inside.attention,
            relative_pos=extra.get("positions"),
            rel_embeddings=extra.get("embeddings"),
        )[0]
        if index == 0 and encoder.encoder.conv is not None:
            hidden = encoder.encoder.conv(extra["embedded"], hidden, extra["mask"])
        return hidden
