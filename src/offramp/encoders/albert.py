"""ALBERT: one layer is one application of a whole group of shared layers."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedConfig

from offramp.encoders.family import EncoderState, Family, HeadSpec, OwnHead

__all__ = ["Albert"]


class Albert(Family):
    """ALBERT: narrow embeddings projected once, layers in groups, a bare linear pooler."""

    name: ClassVar[str] = "albert"
    has_pooler: ClassVar[bool] = True

    def own_head(self, config: PreTrainedConfig) -> OwnHead:
        """The encoder's pooler and a linear layer."""
        return OwnHead(dense="albert.pooler", classifier="classifier")

    def head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """Dense, tanh, dropout."""
        return HeadSpec(dense=True, dropout=float(config.classifier_dropout_prob))

    def pooler(self, layer: int) -> str | None:
        """A bare linear layer."""
        return "pooler"

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Embeddings, projected to the hidden size."""
        narrow = encoder.embeddings(input_ids=ids, token_type_ids=types)
        return encoder.encoder.embedding_hidden_mapping_in(narrow)

    def block(self, encoder: Any, index: int) -> nn.Module:
        """The group that this layer belongs to."""
        config = encoder.config
        group = int(index / (config.num_hidden_layers / config.num_hidden_groups))
        return encoder.encoder.albert_layer_groups[group]

    def layer(self, encoder: Any, index: int, inside: EncoderState) -> Tensor:
        """One application of the layer's group, all its inner layers in order."""
        return self.block(encoder, index)(inside.hidden, inside.attention)
