"""BERT and similar encoders, whose layers take only hidden states and an attention mask."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedConfig

from offramp.encoders.family import EncoderState, Family, HeadModules, HeadSpec, usable_positions
from offramp.originals.width.layer_parts import LayerParts, bert_parts, distilbert_parts

__all__ = ["Bert", "DistilBert", "Electra", "Roberta", "XlmRoberta"]


def classifier_dropout(config: PreTrainedConfig) -> float:
    """Return the classifier's dropout; default: that of the hidden states."""
    dropout = getattr(config, "classifier_dropout", None)
    return float(config.hidden_dropout_prob if dropout is None else dropout)


class Bert(Family):
    """BERT: the classifier reads the pooled first token."""

    name: ClassVar[str] = "bert"
    has_pooler: ClassVar[bool] = True
    has_gates: ClassVar[bool] = True

    def classifier_head(self, config: PreTrainedConfig) -> HeadModules:
        """Return the pooler and the classifier."""
        return HeadModules(dense="bert.pooler.dense", classifier="classifier")

    def head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """Dense layer, tanh, dropout."""
        return HeadSpec(dense=True, dropout=classifier_dropout(config))

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the sum of word, position and token type embeddings."""
        return encoder.embeddings(input_ids=ids, token_type_ids=types)

    def layer(self, encoder: Any, index: int, state: EncoderState) -> Tensor:
        """Run a transformer layer."""
        return self.block(encoder, index)(state.hidden, state.attention)

    def parts(self, encoder: Any, index: int) -> LayerParts:
        """Return the modules of a BERT layer."""
        return bert_parts(self.block(encoder, index))


class Roberta(Bert):
    """RoBERTa: BERT's layers, a two-layer classification head on the first token."""

    name: ClassVar[str] = "roberta"

    def max_length(self, config: PreTrainedConfig) -> int:
        """Return the number of usable positions, which start after the padding token's id."""
        return usable_positions(config)

    def classifier_head(self, config: PreTrainedConfig) -> HeadModules:
        """Return the dense layer and the projection of `classifier`."""
        return HeadModules(dense="classifier.dense", classifier="classifier.out_proj")

    def head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """Dropout, dense layer, tanh, dropout."""
        dropout = classifier_dropout(config)
        return HeadSpec(dense=True, input_dropout=dropout, dropout=dropout)


class XlmRoberta(Roberta):
    """XLM-RoBERTa: RoBERTa with a multilingual vocabulary."""

    name: ClassVar[str] = "xlm-roberta"


class Electra(Roberta):
    """ELECTRA: BERT's layers, embeddings that may be smaller than the hidden size, a head with GELU."""

    name: ClassVar[str] = "electra"
    has_pooler: ClassVar[bool] = False

    def max_length(self, config: PreTrainedConfig) -> int:
        """Return the number of positions, which start at 0."""
        return int(config.max_position_embeddings)

    def head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """Dropout, dense layer, GELU, dropout."""
        dropout = classifier_dropout(config)
        return HeadSpec(dense=True, activation="gelu", input_dropout=dropout, dropout=dropout)

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the embeddings, projected to the hidden size if they are smaller."""
        hidden = super().embed(encoder, ids, mask, types)
        return encoder.embeddings_project(hidden) if hasattr(encoder, "embeddings_project") else hidden


class DistilBert(Family):
    """DistilBERT: no token types, no pooler, a ReLU layer before the classifier."""

    name: ClassVar[str] = "distilbert"
    has_gates: ClassVar[bool] = True

    def classifier_head(self, config: PreTrainedConfig) -> HeadModules:
        """Return `pre_classifier` and `classifier`."""
        return HeadModules(dense="pre_classifier", classifier="classifier")

    def head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """Dense layer, ReLU, dropout."""
        return HeadSpec(dense=True, activation="relu", dropout=float(config.seq_classif_dropout))

    def token_head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """Dropout only."""
        return HeadSpec(dropout=float(config.qa_dropout))

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the sum of word and position embeddings."""
        return encoder.embeddings(ids)

    def block(self, encoder: Any, index: int) -> nn.Module:
        """Return layer `index` of `transformer`."""
        return encoder.transformer.layer[index]

    def layer(self, encoder: Any, index: int, state: EncoderState) -> Tensor:
        """Run a transformer layer."""
        return self.block(encoder, index)(state.hidden, state.attention)

    def parts(self, encoder: Any, index: int) -> LayerParts:
        """Return the modules of a DistilBERT layer."""
        return distilbert_parts(self.block(encoder, index))
