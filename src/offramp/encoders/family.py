"""The base class of encoder families: run an unmodified encoder layer by layer and drop rows in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask

from offramp.core.batch import Batch
from offramp.core.stepper import RowIndices
from offramp.errors import BadModel, BadValue
from offramp.originals.width.layer_parts import LayerParts

__all__ = ["EncoderState", "Family", "HeadModules", "HeadSpec", "padding_mask", "trim_mask", "usable_positions"]


@dataclass(frozen=True)
class HeadSpec:
    """The layers between the pooled hidden states and the classifier of a head."""

    dense: bool = False
    dense_bias: bool = True
    activation: str = "tanh"
    dense_norm_eps: float | None = None  # a LayerNorm after the dense layer
    norm_bias: bool = True
    input_norm_eps: float | None = None  # a LayerNorm before pooling: early exits of pre-norm families
    input_dropout: float = 0.0
    dropout: float = 0.0


@dataclass(frozen=True)
class HeadModules:
    """The module names of a transformers head in the state dict of `…ForSequenceClassification` and the like.

    `pooling` is what that head reads: the first token, the mean, or every token.
    """

    dense: str | None
    classifier: str
    dense_norm: str | None = None
    pooling: str = "first"


@dataclass(frozen=True)
class EncoderState:
    """The hidden states of rows after `depth` layers of an encoder."""

    hidden: Tensor  # (rows, length, hidden size)
    attention: Tensor | None  # the attention mask as the family's layers take it; None: no padding
    weights: Tensor | None  # (rows, 1, length), the tokens' weights in the mean; None: no padding
    lengths: RowIndices | None  # (rows,), tokens up to the last real one, on the CPU; None: no padding
    depth: int = 0
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # further inputs of this family's layers
    kept: Tensor | None = None  # (rows, layers so far, 2), with gates: number of heads and channels kept
    padded_mean: Tensor | None = None  # (rows, hidden size), mean embedding with padding, if the first gate reads it
    marks: Tensor | None = None  # (rows, length), see `EncodedRows`

    @property
    def real(self) -> Tensor:
        """The mask of real tokens, (rows, length)."""
        if self.weights is None:
            return torch.ones(self.hidden.shape[:2], dtype=torch.bool, device=self.hidden.device)
        return self.weights.squeeze(1) > 0


class Family(ABC):
    """How to embed a batch and run the layers of one family of Hugging Face encoders.

    The encoder is the unmodified transformers class. Layer indices start at 0 here.
    """

    name: ClassVar[str]  # the config's model_type
    has_pooler: ClassVar[bool] = False
    pre_norm: ClassVar[bool] = False  # the output of a layer is not normalised
    has_gates: ClassVar[bool] = False  # supports width pruning, see `parts`

    def build(self, config: PreTrainedConfig) -> nn.Module:
        """Build the encoder with random weights, without a pooler."""
        options = {"add_pooling_layer": False} if self.has_pooler else {}
        return AutoModel.from_config(config, **options)

    @abstractmethod
    def classifier_head(self, config: PreTrainedConfig) -> HeadModules:
        """Return the modules of the family's sequence classification head."""

    @abstractmethod
    def head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """Return the structure of the classification head."""

    def token_head(self, module: str) -> HeadModules:
        """Return the modules of a per-token head: a linear layer called `module`."""
        return HeadModules(dense=None, classifier=module, pooling="tokens")

    def token_head_spec(self, config: PreTrainedConfig) -> HeadSpec:
        """Return the structure of a per-token head."""
        return HeadSpec()

    @abstractmethod
    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the input of the first layer."""

    @abstractmethod
    def layer(self, encoder: Any, index: int, state: EncoderState) -> Tensor:
        """Return the output of layer `index`; of the last layer including a final norm."""

    def block(self, encoder: Any, index: int) -> nn.Module:
        """Return the module of layer `index`; layers may share it (ALBERT)."""
        return encoder.encoder.layer[index]

    def max_length(self, config: PreTrainedConfig) -> int:
        """Return the maximum number of tokens that the encoder has positions for."""
        return int(config.max_position_embeddings)

    def pooler(self, layer: int) -> str | None:
        """Return the name of the pre-trained linear layer for the pooler of an exit on `layer` (from 1)."""
        return "pooler.dense" if self.has_pooler else None

    def attention(self, encoder: Any, hidden: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the attention mask as this family's layers take it."""
        return padding_mask(encoder.config, hidden, mask)

    def extra(self, encoder: Any, hidden: Tensor, mask: Tensor | None) -> Mapping[str, Tensor]:
        """Return further inputs of the layers, computed once per batch."""
        return {}

    def trim_extra(self, extra: Mapping[str, Tensor], rows: Tensor, length: int, depth: int) -> Mapping[str, Tensor]:
        """Return `extra` for the given rows, trimmed to `length`."""
        return extra

    def parts(self, encoder: Any, index: int) -> LayerParts:
        """Return the modules of layer `index` that gates prune; only for families with `has_gates`."""
        raise NotImplementedError

    def attention_bias(self, state: EncoderState) -> Tensor | None:
        """Return what is added to the attention scores, (rows or 1, heads or 1, length or 1, length)."""
        return state.attention

    def start(self, encoder: Any, batch: Batch, pad_to: int | None = None, trim: bool = True) -> EncoderState:
        """Embed a batch, with padding trimmed to the longest row if `trim`.

        With `pad_to`, also compute the mean of the embeddings padded to that length (0: the batch's length).
        """
        padded_mean = None
        if pad_to is not None:
            padded_mean = self._mean_with_padding(encoder, batch.ids, batch.mask, batch.types, pad_to)
        lengths = weights = None
        batch = batch.trim() if trim else batch
        mask = batch.mask
        if mask is not None:
            lengths = batch.lengths if trim else np.full_like(batch.lengths, mask.shape[1])
            weights = (mask / mask.sum(1, keepdim=True)).unsqueeze(1)
        hidden = self.embed(encoder, batch.ids, mask, batch.types)
        if weights is not None:
            weights = weights.to(hidden.dtype)
        return EncoderState(
            hidden,
            self.attention(encoder, hidden, mask),
            weights,
            lengths,
            extra=self.extra(encoder, hidden, mask),
            padded_mean=padded_mean,
            marks=batch.marks,
        )

    def _mean_with_padding(
        self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None, length: int
    ) -> Tensor:
        padding = max(0, length - ids.shape[1])
        pad = encoder.config.pad_token_id or 0
        ids = nn.functional.pad(ids, (0, padding), value=pad)
        mask = None if mask is None else nn.functional.pad(mask, (0, padding))
        types = None if types is None else nn.functional.pad(types, (0, padding))
        return self.embed(encoder, ids, mask, types).mean(1)

    def step(self, encoder: Any, state: EncoderState, depth: int) -> EncoderState:
        """Run the layers up to `depth`."""
        for index in range(state.depth, depth):
            state = replace(state, hidden=self.layer(encoder, index, state), depth=index + 1)
        return state

    def keep(self, state: EncoderState, rows: RowIndices) -> EncoderState:
        """Return the state of the given rows, trimmed to the longest."""
        hidden, weights, lengths = state.hidden, state.weights, state.lengths
        indices = torch.from_numpy(rows).to(hidden.device)
        length = hidden.shape[1]
        if lengths is not None and weights is not None:
            lengths = lengths[rows]
            length = int(lengths.max())
            weights = weights[:, :, :length].index_select(0, indices)
        return EncoderState(
            hidden[:, :length].index_select(0, indices),
            trim_mask(state.attention, indices, length),
            weights,
            lengths,
            state.depth,
            self.trim_extra(state.extra, indices, length, state.depth),
            None if state.kept is None else state.kept.index_select(0, indices),
            None if state.padded_mean is None or state.depth else state.padded_mean.index_select(0, indices),
            marks=None if state.marks is None else state.marks[:, :length].index_select(0, indices),
        )


def usable_positions(config: PreTrainedConfig) -> int:
    """Return the maximum number of tokens if positions start after the padding token's id."""
    pad = config.pad_token_id
    if pad is None or pad < 0:
        raise BadModel(f"`backbone.pad_token_id` must be at least 0, got {pad!r}; position ids start after it.")
    return int(config.max_position_embeddings) - int(pad) - 1


def padding_mask(config: PreTrainedConfig, hidden: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return the attention mask of padding for the configured attention implementation.

    For sdpa and eager attention it is a float mask (rows, 1, 1, length), which both add to the scores; eager attention
    would add a Boolean mask as well. For others it is what transformers creates.
    """
    if mask is None:
        return None
    if config._attn_implementation in ("sdpa", "eager"):
        float_mask = torch.zeros(mask.shape, dtype=hidden.dtype, device=mask.device)
        return float_mask.masked_fill_(~mask, torch.finfo(hidden.dtype).min)[:, None, None, :]
    attention_mask = create_bidirectional_mask(config=config, inputs_embeds=hidden, attention_mask=mask)
    if attention_mask is not None and not isinstance(attention_mask, Tensor):
        raise BadValue(
            f"Attention implementation {config._attn_implementation!r} does not support early exits. "
            "Load the model with attn_implementation='sdpa'."
        )
    return attention_mask


def trim_mask(mask: Tensor | None, rows: Tensor, length: int) -> Tensor | None:
    """Select rows of a 2- or 4-dimensional attention mask and trim it to `length`."""
    if mask is None:
        return None
    mask = mask[..., :length] if mask.dim() == 2 or mask.shape[-2] == 1 else mask[..., :length, :length]
    return mask if mask.shape[0] == 1 else mask.index_select(0, rows)
