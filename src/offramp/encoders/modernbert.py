"""ModernBERT: pre-norm layers, rotary positions, alternating local and global attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.masking_utils import create_bidirectional_sliding_window_mask

from offramp.encoders.family import EncoderState, Family, HeadModules, HeadSpec, trim_mask

__all__ = ["ModernBert"]

SLIDING = "sliding_attention"


class ModernBert(Family):
    """ModernBERT: early exits have their own input norm, the last one reads the encoder's final norm."""

    name: ClassVar[str] = "modernbert"
    pre_norm: ClassVar[bool] = True

    def classifier_head(self, config: PreTrainedConfig) -> HeadModules:
        """Return the dense layer and norm of `head`, and the classifier."""
        pooling = "mean" if config.classifier_pooling == "mean" else "first"
        return HeadModules(dense="head.dense", dense_norm="head.norm", classifier="classifier", pooling=pooling)

    def token_head(self, module: str) -> HeadModules:
        """Return the same modules, applied to every token."""
        return HeadModules(dense="head.dense", dense_norm="head.norm", classifier="classifier", pooling="tokens")

    def token_head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """The same as the classification head."""
        return self.head_spec(config)

    def head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """Dense layer, activation, norm, dropout."""
        return HeadSpec(
            dense=True,
            dense_bias=bool(config.classifier_bias),
            activation=config.classifier_activation,
            dense_norm_eps=float(config.norm_eps),
            norm_bias=bool(config.norm_bias),
            dropout=float(config.classifier_dropout),
        )

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the word embeddings; positions are rotary."""
        return encoder.embeddings(input_ids=ids)

    def extra(self, encoder: Any, hidden: Tensor, mask: Tensor | None) -> Mapping[str, Tensor]:
        """Return the mask of local attention, and the rotary embeddings (1, length, head size) of each layer type."""
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        extra: dict[str, Tensor] = {}
        for layer_type in set(encoder.config.layer_types):
            cos, sin = encoder.rotary_emb(hidden, positions, layer_type)
            extra |= {f"{layer_type} cos": cos, f"{layer_type} sin": sin}
        local = create_bidirectional_sliding_window_mask(
            config=encoder.config, inputs_embeds=hidden, attention_mask=mask
        )
        if local is not None:
            extra["local mask"] = local
        return extra

    def trim_extra(self, extra: Mapping[str, Tensor], rows: Tensor, length: int, depth: int) -> Mapping[str, Tensor]:
        """Select the rows of the mask, and trim it and the rotary embeddings."""
        trimmed = {key: table[:, :length] for key, table in extra.items() if key != "local mask"}
        local = trim_mask(extra.get("local mask"), rows, length)
        return trimmed if local is None else trimmed | {"local mask": local}

    def block(self, encoder: Any, index: int) -> nn.Module:
        """Return layer `index` of `layers`."""
        return encoder.layers[index]

    def layer(self, encoder: Any, index: int, state: EncoderState) -> Tensor:
        """Run a transformer layer; after the last, the encoder's final norm."""
        layer, extra = self.block(encoder, index), state.extra
        layer_type = layer.attention_type
        hidden: Tensor = layer(
            state.hidden,
            attention_mask=extra.get("local mask") if layer_type == SLIDING else state.attention,
            position_embeddings=(extra[f"{layer_type} cos"], extra[f"{layer_type} sin"]),
        )
        return encoder.final_norm(hidden) if index + 1 == len(encoder.layers) else hidden
