"""DeBERTa-v2 and v3: disentangled attention, and in some sizes a convolution next to the first layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from offramp.encoders.family import EncoderState, Family, HeadModules, HeadSpec

__all__ = ["DebertaV2"]


class DebertaV2(Family):
    """DeBERTa-v2/v3: every layer takes relative positions and their embeddings."""

    name: ClassVar[str] = "deberta-v2"

    def classifier_head(self, config: PreTrainedConfig) -> HeadModules:
        """Return the context pooler and the classifier."""
        return HeadModules(dense="pooler.dense", classifier="classifier")

    def head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """Dropout, dense layer, the pooler's activation, dropout."""
        dropout = getattr(config, "cls_dropout", None)
        return HeadSpec(
            dense=True,
            activation=config.pooler_hidden_act,
            input_dropout=float(config.pooler_dropout),
            dropout=float(config.hidden_dropout_prob if dropout is None else dropout),
        )

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the embeddings; those of padding are zero."""
        types = torch.zeros_like(ids) if types is None else types
        return encoder.embeddings(input_ids=ids, token_type_ids=types, mask=mask)

    def attention(self, encoder: Any, hidden: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return a Boolean mask, (rows or 1, 1, length, length); these layers do not accept None."""
        if mask is None:
            return torch.ones((1, 1, hidden.shape[1], hidden.shape[1]), dtype=torch.bool, device=hidden.device)
        return encoder.encoder.get_attention_mask(mask.long()).bool()

    def extra(self, encoder: Any, hidden: Tensor, mask: Tensor | None) -> Mapping[str, Tensor]:
        """Return the relative positions (1, length, length), their embeddings, and the convolution's mask."""
        extra: dict[str, Tensor] = {}
        positions = encoder.encoder.get_rel_pos(hidden)
        if positions is not None:
            extra |= {"positions": positions, "embeddings": encoder.encoder.get_rel_embedding()}
        if encoder.encoder.conv is not None:
            ones = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
            extra["mask"] = ones if mask is None else mask.long()
        return extra

    def trim_extra(self, extra: Mapping[str, Tensor], rows: Tensor, length: int, depth: int) -> Mapping[str, Tensor]:
        """Trim the positions and, before the first layer has run, the convolution's mask."""
        trimmed: dict[str, Tensor] = {}
        if "positions" in extra:
            trimmed = {"positions": extra["positions"][:, :length, :length], "embeddings": extra["embeddings"]}
        if depth == 0 and "mask" in extra:
            trimmed["mask"] = extra["mask"][:, :length].index_select(0, rows)
        return trimmed

    def layer(self, encoder: Any, index: int, state: EncoderState) -> Tensor:
        """Run a transformer layer; after the first, the convolution if there is one."""
        extra = state.extra
        hidden: Tensor = self.block(encoder, index)(
            state.hidden,
            state.attention,
            relative_pos=extra.get("positions"),
            rel_embeddings=extra.get("embeddings"),
        )[0]
        if index == 0 and encoder.encoder.conv is not None:
            hidden = encoder.encoder.conv(state.hidden, hidden, extra["mask"])  # of the embeddings
        return hidden
