"""MPNet: a relative position bias, computed once and handed to every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedConfig

from offramp.encoders.family import EncoderState, Family, HeadSpec, OwnHead, positions_behind_padding
from offramp.originals.width.parts import Parts, like_mpnet

__all__ = ["MPNet"]


class MPNet(Family):
    """MPNet: no token types, positions from 2, a bias shared by all layers and rows."""

    name: ClassVar[str] = "mpnet"
    has_pooler: ClassVar[bool] = True
    has_gates: ClassVar[bool] = True

    def own_head(self, config: PreTrainedConfig) -> OwnHead:
        """A dense layer and a projection, both under `classifier`."""
        return OwnHead(dense="classifier.dense", classifier="classifier.out_proj")

    def head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """Dropout, dense, tanh, dropout."""
        dropout = float(config.hidden_dropout_prob)
        return HeadSpec(dense=True, input_dropout=dropout, dropout=dropout)

    def max_length(self, config: PreTrainedConfig) -> int:
        """Positions start behind the padding's."""
        return positions_behind_padding(config)

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Words and positions."""
        return encoder.embeddings(input_ids=ids)

    def extra(self, encoder: Any, hidden: Tensor, mask: Tensor | None) -> Mapping[str, Tensor]:
        """The position bias, (1, heads, length, length): the same for every row."""
        return {"bias": encoder.encoder.compute_position_bias(hidden[:1])}

    def trim_extra(self, extra: Mapping[str, Tensor], rows: Tensor, length: int, depth: int) -> Mapping[str, Tensor]:
        """The bias for shorter rows is its upper left corner."""
        return {"bias": extra["bias"][:, :, :length, :length]}

    def layer(self, encoder: Any, index: int, inside: EncoderState) -> Tensor:
        """One transformer layer with the shared bias."""
        return self.block(encoder, index)(inside.hidden, inside.attention, inside.extra["bias"])[0]

    def parts(self, encoder: Any, index: int) -> Parts:
        """Under MPNet's own names."""
        return like_mpnet(self.block(encoder, index))

    def hides(self, inside: EncoderState) -> Tensor | None:
        """Padding, and the bias."""
        bias = inside.extra["bias"]
        return bias if inside.attention is None else bias + inside.attention
