"""ElasticBERT: BERT's layers, pre-trained with an exit on each, so that every layer has its own pooler.

No class of transformers reads these checkpoints; config and body are here, on BERT's own modules. Poolers
stand inside the encoder, `encoder.pooler.<layer index>`, and only where outputs are wanted: the last
`num_output_layers` of the `num_hidden_layers` that are built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, BertConfig, BertTokenizer, PreTrainedConfig
from transformers.models.bert.modeling_bert import BertEmbeddings, BertEncoder, BertPooler, BertPreTrainedModel
from transformers.utils import ModelOutput

from offramp.core.batch import Batch
from offramp.encoders.bert import Bert
from offramp.encoders.family import HeadSpec, OwnHead
from offramp.errors import BadModel

__all__ = ["ElasticBert", "ElasticBertConfig", "ElasticBertModel", "ElasticBertOutput"]


class ElasticBertConfig(BertConfig):
    """BERT's config with the number of layers that answer and of poolers in the file."""

    model_type = "elasticbert"
    max_output_layers: int = 12
    num_output_layers: int = 12


@dataclass
class ElasticBertOutput(ModelOutput):
    """The last layer's states and, per output layer from shallow to deep, the pooled first token."""

    last_hidden_state: Tensor | None = None  # (rows, length, hidden)
    pooled: Tensor | None = None  # (rows, outputs, hidden)


class ElasticBertModel(BertPreTrainedModel):
    """The body of an ElasticBERT checkpoint; `num_hidden_layers=k, num_output_layers=1` loads its first k layers."""

    config_class = ElasticBertConfig
    base_model_prefix = "elasticbert"
    _no_split_modules: ClassVar[list[str]] = ["BertEmbeddings", "BertLayer"]
    # heads of pre-training and of fine-tuning, and what a shallower body leaves behind
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [
        r"^predictions\.",
        r"^sop_classifier\.",
        r"^cls\.",
        r"^classifiers?\.",
        r"position_ids$",
        r"encoder\.pooler\.",
        r"encoder\.layer\.",
    ]

    def __init__(self, config: ElasticBertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        if getattr(config, "position_embedding_type", "absolute") != "absolute":
            raise BadModel(f"ElasticBERT with {config.position_embedding_type!r} positions is not supported.")
        if config.num_output_layers > config.num_hidden_layers:
            raise BadModel(
                f"num_output_layers is {config.num_output_layers}, but {config.num_hidden_layers} layers are built."
            )
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        if add_pooling_layer:
            first = config.num_hidden_layers - config.num_output_layers
            self.encoder.pooler = nn.ModuleDict(
                {str(index): BertPooler(config) for index in range(first, config.num_hidden_layers)}
            )
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The word embeddings."""
        return self.embeddings.word_embeddings

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> ElasticBertOutput:
        """Every layer once; each output layer's first token through its own pooler."""
        family = ElasticBert()
        inside = family.start(self, Batch.of_tensors(input_ids, attention_mask, token_type_ids))
        poolers = getattr(self.encoder, "pooler", {})
        pooled = []
        for depth in range(1, self.config.num_hidden_layers + 1):
            inside = family.step(self, inside, depth)
            if str(depth - 1) in poolers:
                pooled.append(poolers[str(depth - 1)](inside.hidden))
        return ElasticBertOutput(inside.hidden, torch.stack(pooled, dim=1) if pooled else None)


class ElasticBert(Bert):
    """ElasticBERT: BERT's layers; exits take over the pooler of their layer."""

    name: ClassVar[str] = "elasticbert"

    def own_head(self, config: PreTrainedConfig) -> OwnHead:
        """The last layer's pooler and a linear layer (its static checkpoints)."""
        return OwnHead(
            dense=f"elasticbert.encoder.pooler.{config.num_hidden_layers - 1}.dense", classifier="classifier"
        )

    def head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """Dense, tanh, dropout."""
        return HeadSpec(dense=True, dropout=float(config.hidden_dropout_prob))

    def pooler(self, layer: int) -> str | None:
        """Every layer has its own."""
        return f"encoder.pooler.{layer - 1}.dense"

    def build(self, config: PreTrainedConfig) -> nn.Module:
        """The body without poolers."""
        built: Any = ElasticBertModel._from_config(config, add_pooling_layer=False)
        return built


AutoConfig.register("elasticbert", ElasticBertConfig, exist_ok=True)
AutoModel.register(ElasticBertConfig, ElasticBertModel, exist_ok=True)
AutoTokenizer.register(ElasticBertConfig, BertTokenizer, exist_ok=True)
