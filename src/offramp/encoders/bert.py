"""BERT and its nearest kin, whose layers take hidden states and a mask and nothing else."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedConfig

from offramp.encoders.family import EncoderState, Family, HeadSpec, OwnHead, positions_behind_padding
from offramp.originals.width.parts import Parts, like_bert, like_distilbert

__all__ = ["Bert", "DistilBert", "Electra", "Roberta", "XlmRoberta"]


def classifier_dropout(config: PreTrainedConfig) -> float:
    """The dropout before a classifier: its own where the config has one, else the hidden states'."""
    own = getattr(config, "classifier_dropout", None)
    return float(config.hidden_dropout_prob if own is None else own)


class Bert(Family):
    """BERT: embeddings, then `encoder.layer`; its classifier reads a pooled first token."""

    name: ClassVar[str] = "bert"
    has_pooler: ClassVar[bool] = True
    has_gates: ClassVar[bool] = True

    def own_head(self, config: PreTrainedConfig) -> OwnHead:
        """The encoder's pooler and a linear layer."""
        return OwnHead(dense="bert.pooler.dense", classifier="classifier")

    def head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """Dense, tanh, dropout."""
        return HeadSpec(dense=True, dropout=classifier_dropout(config))

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Words, positions, token types."""
        return encoder.embeddings(input_ids=ids, token_type_ids=types)

    def layer(self, encoder: Any, index: int, inside: EncoderState) -> Tensor:
        """One transformer layer."""
        return self.block(encoder, index)(inside.hidden, inside.attention)

    def parts(self, encoder: Any, index: int) -> Parts:
        """Under BERT's own names."""
        return like_bert(self.block(encoder, index))


class Roberta(Bert):
    """RoBERTa: BERT's layers; its classifier is a two-layer head on the first token."""

    name: ClassVar[str] = "roberta"

    def max_length(self, config: PreTrainedConfig) -> int:
        """Positions start behind the padding's."""
        return positions_behind_padding(config)

    def own_head(self, config: PreTrainedConfig) -> OwnHead:
        """A dense layer and a projection, both under `classifier`."""
        return OwnHead(dense="classifier.dense", classifier="classifier.out_proj")

    def head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """Dropout, dense, tanh, dropout."""
        dropout = classifier_dropout(config)
        return HeadSpec(dense=True, input_dropout=dropout, dropout=dropout)


class XlmRoberta(Roberta):
    """XLM-R: RoBERTa with another vocabulary."""

    name: ClassVar[str] = "xlm-roberta"


class Electra(Roberta):
    """ELECTRA: BERT's layers behind embeddings that may be narrower; its head uses GELU."""

    name: ClassVar[str] = "electra"
    has_pooler: ClassVar[bool] = False

    def max_length(self, config: PreTrainedConfig) -> int:
        """Positions start at 0, as BERT's do."""
        return int(config.max_position_embeddings)

    def head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """Dropout, dense, GELU, dropout."""
        dropout = classifier_dropout(config)
        return HeadSpec(dense=True, activation="gelu", input_dropout=dropout, dropout=dropout)

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Embeddings, projected to the hidden size where they are narrower."""
        hidden = super().embed(encoder, ids, mask, types)
        return encoder.embeddings_project(hidden) if hasattr(encoder, "embeddings_project") else hidden


class DistilBert(Family):
    """DistilBERT: no token types, no pooler; its classifier has a ReLU layer before it."""

    name: ClassVar[str] = "distilbert"
    has_gates: ClassVar[bool] = True

    def own_head(self, config: PreTrainedConfig) -> OwnHead:
        """`pre_classifier` and `classifier`."""
        return OwnHead(dense="pre_classifier", classifier="classifier")

    def head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """Dense, ReLU, dropout."""
        return HeadSpec(dense=True, activation="relu", dropout=float(config.seq_classif_dropout))

    def token_head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """Dropout."""
        return HeadSpec(dropout=float(config.qa_dropout))

    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Words and positions."""
        return encoder.embeddings(ids)

    def block(self, encoder: Any, index: int) -> nn.Module:
        """They lie under `transformer`."""
        return encoder.transformer.layer[index]

    def layer(self, encoder: Any, index: int, inside: EncoderState) -> Tensor:
        """One transformer layer."""
        return self.block(encoder, index)(inside.hidden, inside.attention)

    def parts(self, encoder: Any, index: int) -> Parts:
        """Under DistilBERT's own names."""
        return like_distilbert(self.block(encoder, index))
