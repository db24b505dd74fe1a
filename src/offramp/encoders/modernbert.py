"""ModernBERT: pre-norm layers, rotary positions, local and global attention by turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.masking_utils import create_bidirectional_sliding_window_mask

from offramp.encoders.family import EncoderState, Family, HeadSpec, OwnHead, trim_mask

__all__ = ["ModernBert"]

SLIDING = "sliding_attention"


class ModernBert(Family):
    """ModernBERT: inner exits get a norm of their own, the last one stands behind the encoder's."""

    name: ClassVar[str] = "modernbert"
    pre_norm: ClassVar[bool] = True

    def own_head(self, config: PreTrainedConfig) -> OwnHead:
        """Dense, activation and norm under `head`, then a linear layer."""
        pooling = "mean" if config.classifier_pooling == "mean" else "first"
        return OwnHead(dense="head.dense", dense_norm="head.norm", classifier="classifier", pooling=pooling)

    def token_head(self, module: str) -> OwnHead:
        """The same parts, read at every token."""
        return OwnHead(dense="head.dense", dense_norm="head.norm", classifier="classifier", pooling="tokens")

    def token_head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """As that of its classifier."""
        return self.head_shape(config)

    def head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """Dense, activation, norm, dropout."""
        return HeadSpec(
            dense=True,
            dense_bias=bool(config.classifier_bias),
            activation=config.classifier_activation,
            dense_norm_eps=float(config.norm_eps),
            norm_bias=bool(config.norm_bias),
            dropout=float(config.classifier_dropout),
        )

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Words alone; positions come in by rotation."""
        return encoder.embeddings(input_ids=ids)

    def extra(self, encoder: Any, hidden: Tensor, mask: Tensor | None) -> Mapping[str, Tensor]:
        """The local layers' mask, and the rotary tables (1, length, head size) of each kind of layer."""
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        extra = {}
        for kind in set(encoder.config.layer_types):
            extra[f"{kind} cos"], extra[f"{kind} sin"] = encoder.rotary_emb(hidden, positions, kind)
        local = create_bidirectional_sliding_window_mask(
            config=encoder.config, inputs_embeds=hidden, attention_mask=mask
        )
        if local is not None:
            extra["local mask"] = local
        return extra

    def trim_extra(self, extra: Mapping[str, Tensor], rows: Tensor, length: int, depth: int) -> Mapping[str, Tensor]:
        """The mask for these rows; the tables are cut."""
        trimmed = {key: table[:, :length] for key, table in extra.items() if key != "local mask"}
        local = trim_mask(extra.get("local mask"), rows, length)
        return trimmed if local is None else trimmed | {"local mask": local}

    def block(self, encoder: Any, index: int) -> nn.Module:
        """They lie under `layers`."""
        return encoder.layers[index]

    def layer(self, encoder: Any, index: int, inside: EncoderState) -> Tensor:
        """One transformer layer with its kind's mask and table; behind the last the encoder's final norm."""
        layer, extra = self.block(encoder, index), inside.extra
        kind = layer.attention_type
        hidden: Tensor = layer(
            inside.hidden,
            attention_mask=extra.get("local mask") if kind == SLIDING else inside.attention,
            position_embeddings=(extra[f"{kind} cos"], extra[f"{kind} sin"]),
        )
        return encoder.final_norm(hidden) if index + 1 == len(encoder.layers) else hidden
