"""ALBERT: each layer applies a group of inner layers whose weights are shared."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedConfig

from offramp.encoders.family import EncoderState, Family, HeadModules, HeadSpec

__all__ = ["Albert"]


class Albert(Family):
    """ALBERT: embeddings projected to the hidden size, shared layer groups, a linear pooler."""

    name: ClassVar[str] = "albert"
    has_pooler: ClassVar[bool] = True

    def classifier_head(self, config: PreTrainedConfig) -> HeadModules:
        """Return the pooler and the classifier."""
        return HeadModules(dense="albert.pooler", classifier="classifier")

    def head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """Dense layer, tanh, dropout."""
        return HeadSpec(dense=True, dropout=float(config.classifier_dropout_prob))

    def pooler(self, layer: int) -> str | None:
        """Return the pooler, which is a linear layer itself."""
        return "pooler"

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the embeddings, projected to the hidden size."""
        embeddings = encoder.embeddings(input_ids=ids, token_type_ids=types)
        return encoder.encoder.embedding_hidden_mapping_in(embeddings)

    def block(self, encoder: Any, index: int) -> nn.Module:
        """Return the layer group of layer `index`."""
        config = encoder.config
        group = int(index / (config.num_hidden_layers / config.num_hidden_groups))
        return encoder.encoder.albert_layer_groups[group]

    def layer(self, encoder: Any, index: int, state: EncoderState) -> Tensor:
        """Apply the layer's group."""
        return self.block(encoder, index)(state.hidden, state.attention)
