"""MPNet: a relative position bias, computed once and passed to every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedConfig

from offramp.encoders.family import EncoderState, Family, HeadModules, HeadSpec, usable_positions
from offramp.originals.width.layer_parts import LayerParts, mpnet_parts

__all__ = ["MPNet"]


class MPNet(Family):
    """MPNet: no token types, positions from 2, a position bias shared by all layers and rows."""

    name: ClassVar[str] = "mpnet"
    has_pooler: ClassVar[bool] = True
    has_gates: ClassVar[bool] = True

    def classifier_head(self, config: PreTrainedConfig) -> HeadModules:
        """Return the dense layer and the projection of `classifier`."""
        return HeadModules(dense="classifier.dense", classifier="classifier.out_proj")

    def head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """Dropout, dense layer, tanh, dropout."""
        dropout = float(config.hidden_dropout_prob)
        return HeadSpec(dense=True, input_dropout=dropout, dropout=dropout)

    def max_length(self, config: PreTrainedConfig) -> int:
        """Return the number of usable positions, which start after the padding token's id."""
        return usable_positions(config)

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the sum of word and position embeddings."""
        return encoder.embeddings(input_ids=ids)

    def extra(self, encoder: Any, hidden: Tensor, mask: Tensor | None) -> Mapping[str, Tensor]:
        """Return the position bias, (1, heads, length, length)."""
        return {"bias": encoder.encoder.compute_position_bias(hidden[:1])}

    def trim_extra(self, extra: Mapping[str, Tensor], rows: Tensor, length: int, depth: int) -> Mapping[str, Tensor]:
        """Trim the bias to its upper left corner."""
        return {"bias": extra["bias"][:, :, :length, :length]}

    def layer(self, encoder: Any, index: int, state: EncoderState) -> Tensor:
        """Run a transformer layer with the position bias."""
        return self.block(encoder, index)(state.hidden, state.attention, state.extra["bias"])[0]

    def parts(self, encoder: Any, index: int) -> LayerParts:
        """Return the modules of an MPNet layer."""
        return mpnet_parts(self.block(encoder, index))

    def attention_bias(self, state: EncoderState) -> Tensor | None:
        """Return the sum of the padding mask and the position bias."""
        bias = state.extra["bias"]
        return bias if state.attention is None else bias + state.attention
