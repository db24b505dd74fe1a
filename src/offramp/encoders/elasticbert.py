"""ElasticBERT: BERT's layers, pre-trained with an exit and a pooler on every layer.

transformers has no class for these checkpoints, so config and model are defined here, from BERT's modules. The poolers
are `encoder.pooler.<layer index>`, one for each of the last `num_output_layers` layers.
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
from offramp.encoders.family import HeadModules, HeadSpec
from offramp.errors import BadModel

__all__ = ["ElasticBert", "ElasticBertConfig", "ElasticBertModel", "ElasticBertOutput"]


class ElasticBertConfig(BertConfig):
    """BERT's config with the number of output layers, and of poolers in the checkpoint."""

    model_type = "elasticbert"
    max_output_layers: int = 12
    num_output_layers: int = 12


@dataclass
class ElasticBertOutput(ModelOutput):
    """The last hidden states, and the pooled first token of each output layer from shallow to deep."""

    last_hidden_state: Tensor | None = None  # (rows, length, hidden)
    pooled: Tensor | None = None  # (rows, outputs, hidden)


class ElasticBertModel(BertPreTrainedModel):
    """The ElasticBERT encoder; `num_hidden_layers=k, num_output_layers=1` loads the first k layers."""

    config_class = ElasticBertConfig
    base_model_prefix = "elasticbert"
    _no_split_modules: ClassVar[list[str]] = ["BertEmbeddings", "BertLayer"]
    # pre-training and fine-tuning heads, and layers beyond `num_hidden_layers`
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
                f"num_output_layers must be at most num_hidden_layers ({config.num_hidden_layers}), got "
                f"{config.num_output_layers}."
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
        """Return the word embeddings."""
        return self.embeddings.word_embeddings

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> ElasticBertOutput:
        """Run all layers; pool the first token of each output layer."""
        family = ElasticBert()
        state = family.start(self, Batch.from_tensors(input_ids, attention_mask, token_type_ids))
        poolers = getattr(self.encoder, "pooler", {})
        pooled = []
        for depth in range(1, self.config.num_hidden_layers + 1):
            state = family.step(self, state, depth)
            if str(depth - 1) in poolers:
                pooled.append(poolers[str(depth - 1)](state.hidden))
        return ElasticBertOutput(state.hidden, torch.stack(pooled, dim=1) if pooled else None)


class ElasticBert(Bert):
    """ElasticBERT: BERT's layers; exits start from the pooler of their layer."""

    name: ClassVar[str] = "elasticbert"

    def classifier_head(self, config: PreTrainedConfig) -> HeadModules:
        """Return the last layer's pooler and the classifier (static checkpoints)."""
        return HeadModules(
            dense=f"elasticbert.encoder.pooler.{config.num_hidden_layers - 1}.dense", classifier="classifier"
        )

    def head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """Dense layer, tanh, dropout."""
        return HeadSpec(dense=True, dropout=float(config.hidden_dropout_prob))

    def pooler(self, layer: int) -> str | None:
        """Return the pooler of `layer`."""
        return f"encoder.pooler.{layer - 1}.dense"

    def build(self, config: PreTrainedConfig) -> nn.Module:
        """Build the encoder without poolers."""
        encoder: Any = ElasticBertModel._from_config(config, add_pooling_layer=False)
        return encoder


AutoConfig.register("elasticbert", ElasticBertConfig, exist_ok=True)
AutoModel.register(ElasticBertConfig, ElasticBertModel, exist_ok=True)
AutoTokenizer.register(ElasticBertConfig, BertTokenizer, exist_ok=True)
