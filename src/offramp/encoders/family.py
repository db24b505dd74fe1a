"""What every family shares: how rows start, step and are kept inside an unmodified encoder."""

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
from offramp.core.stepper import Positions
from offramp.errors import BadModel, BadValue
from offramp.originals.width.parts import Parts

__all__ = ["EncoderState", "Family", "HeadSpec", "OwnHead", "padding_mask", "positions_behind_padding", "trim_mask"]


@dataclass(frozen=True)
class HeadSpec:
    """What stands between the vector that a head reads and its classifier."""

    dense: bool = False
    dense_bias: bool = True
    activation: str = "tanh"
    dense_norm_eps: float | None = None  # a LayerNorm behind the dense layer
    norm_bias: bool = True
    input_norm_eps: float | None = None  # a LayerNorm before everything: inner exits of a pre-norm family
    input_dropout: float = 0.0
    dropout: float = 0.0


@dataclass(frozen=True)
class OwnHead:
    """Where the family's own classifier keeps the parts of its head.

    Module names in the state dict of `…ForSequenceClassification` (or `…ForQuestionAnswering`); `pooling` is what that
    head reads.
    """

    dense: str | None
    classifier: str
    dense_norm: str | None = None
    pooling: str = "first"


@dataclass(frozen=True)
class EncoderState:
    """Rows inside an encoder, after `depth` layers."""

    hidden: Tensor  # (rows, length, hidden size)
    attention: Tensor | None  # the mask as the family's layers take it; None: nothing is padded
    weights: Tensor | None  # (rows, 1, length), each real token's share of the mean; None: nothing is padded
    lengths: Positions | None  # each row up to its last real token, on the host; None: nothing is padded
    depth: int = 0
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # what only this family's layers need
    kept: Tensor | None = None  # (rows, layers so far, 2), with gates: heads and channels that each row kept
    first: Tensor | None = (
        None  # (rows, hidden size), before the first layer: the mean with padding, if a gate reads it
    )
    marks: Tensor | None = None  # (rows, length), what the answer type marked

    @property
    def real(self) -> Tensor:
        """Where a row's tokens are real, (rows, length)."""
        if self.weights is None:
            return torch.ones(self.hidden.shape[:2], dtype=torch.bool, device=self.hidden.device)
        return self.weights.squeeze(1) > 0


class Family(ABC):
    """How one family of Hugging Face encoders is embedded and stepped from the outside.

    The encoder is the family's own class, untouched. Layers are indexed from 0 here.
    """

    name: ClassVar[str]  # the config's model_type
    has_pooler: ClassVar[bool] = False
    pre_norm: ClassVar[bool] = False  # layers leave their output without a LayerNorm
    has_gates: ClassVar[bool] = False  # its layers have the parts that width needs

    def build(self, config: PreTrainedConfig) -> nn.Module:
        """The family's encoder with fresh weights and, where it may have one, without a pooler."""
        options = {"add_pooling_layer": False} if self.has_pooler else {}
        return AutoModel.from_config(config, **options)

    @abstractmethod
    def own_head(self, config: PreTrainedConfig) -> OwnHead:
        """Where the family's own classifier keeps its head, and what that head reads."""

    @abstractmethod
    def head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """The shape of that head."""

    def token_head(self, module: str) -> OwnHead:
        """Where a class that answers at every token keeps its head: a linear layer, called `module`."""
        return OwnHead(dense=None, classifier=module, pooling="tokens")

    def token_head_shape(self, config: PreTrainedConfig) -> HeadSpec:
        """The shape of that one."""
        return HeadSpec()

    @abstractmethod
    def embed(self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        """The hidden states that enter the first layer."""

    @abstractmethod
    def layer(self, encoder: Any, index: int, inside: EncoderState) -> Tensor:
        """The hidden states behind layer `index` (behind the last one: with whatever norm follows it)."""

    def block(self, encoder: Any, index: int) -> nn.Module:
        """The module that layer `index` runs; layers may share one (ALBERT)."""
        return encoder.encoder.layer[index]

    def max_length(self, config: PreTrainedConfig) -> int:
        """The longest text in tokens that the encoder has positions for."""
        return int(config.max_position_embeddings)

    def pooler(self, layer: int) -> str | None:
        """The pre-trained pooler that fits an exit on `layer` (from 1), as the encoder names its linear layer."""
        return "pooler.dense" if self.has_pooler else None

    def attention(self, encoder: Any, hidden: Tensor, mask: Tensor | None) -> Tensor | None:
        """The padding mask as this family's layers take it."""
        return padding_mask(encoder.config, hidden, mask)

    def extra(self, encoder: Any, hidden: Tensor, mask: Tensor | None) -> Mapping[str, Tensor]:
        """What else the layers need, computed once per batch."""
        return {}

    def trim_extra(self, extra: Mapping[str, Tensor], rows: Tensor, length: int, depth: int) -> Mapping[str, Tensor]:
        """The same for some of the rows, cut to `length`."""
        return extra

    def parts(self, encoder: Any, index: int) -> Parts:
        """The parts of layer `index`, for gates; a family without them is refused before it gets any."""
        raise NotImplementedError

    def hides(self, inside: EncoderState) -> Tensor | None:
        """What a layer made of parts adds to its attention's scores, (rows or 1, heads or 1, length or 1, length)."""
        return inside.attention

    def start(self, encoder: Any, batch: Batch, pad_to: int | None = None, cut: bool = True) -> EncoderState:
        """Embed a batch, its padding `cut` to the longest row.

        With `pad_to` (0: as long as the batch is) also the mean of the embeddings over that length, padding included.
        """
        first = None
        if pad_to is not None:
            first = self._mean_with_padding(encoder, batch.ids, batch.mask, batch.types, pad_to)
        lengths = weights = None
        batch = batch.cut() if cut else batch
        mask = batch.mask
        if mask is not None:
            lengths = batch.lengths if cut else np.full_like(batch.lengths, mask.shape[1])
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
            first=first,
            marks=batch.marks,
        )

    def _mean_with_padding(
        self, encoder: Any, ids: Tensor, mask: Tensor | None, types: Tensor | None, length: int
    ) -> Tensor:
        more = max(0, length - ids.shape[1])
        pad = encoder.config.pad_token_id or 0
        ids = nn.functional.pad(ids, (0, more), value=pad)
        mask = None if mask is None else nn.functional.pad(mask, (0, more))
        types = None if types is None else nn.functional.pad(types, (0, more))
        return self.embed(encoder, ids, mask, types).mean(1)

    def step(self, encoder: Any, inside: EncoderState, depth: int) -> EncoderState:
        """Run the layers up to `depth`."""
        for index in range(inside.depth, depth):
            inside = replace(inside, hidden=self.layer(encoder, index, inside), depth=index + 1)
        return inside

    def keep(self, inside: EncoderState, rows: Positions) -> EncoderState:
        """Some of the rows, cut to the longest of them."""
        hidden, weights, lengths = inside.hidden, inside.weights, inside.lengths
        kept = torch.from_numpy(rows).to(hidden.device)
        length = hidden.shape[1]
        if lengths is not None and weights is not None:
            lengths = lengths[rows]
            length = int(lengths.max())
            weights = weights[:, :, :length].index_select(0, kept)
        return EncoderState(
            hidden[:, :length].index_select(0, kept),
            trim_mask(inside.attention, kept, length),
            weights,
            lengths,
            inside.depth,
            self.trim_extra(inside.extra, kept, length, inside.depth),
            None if inside.kept is None else inside.kept.index_select(0, kept),
            None if inside.first is None or inside.depth else inside.first.index_select(0, kept),
            marks=None if inside.marks is None else inside.marks[:, :length].index_select(0, kept),
        )


def positions_behind_padding(config: PreTrainedConfig) -> int:
    """The longest text of a family that counts positions from the padding token's number."""
    pad = config.pad_token_id
    if pad is None or pad < 0:
        raise BadModel(f"`backbone.pad_token_id` is {pad!r}; positions are counted from it, so it is a number from 0.")
    return int(config.max_position_embeddings) - int(pad) - 1


def padding_mask(config: PreTrainedConfig, hidden: Tensor, mask: Tensor | None) -> Tensor | None:
    """An attention mask that hides padding, in the form that the configured attention takes.

    For sdpa and eager attention a float mask (rows, 1, 1, length), which both add to the scores (eager
    attention adds a Boolean one too, silently); for anything else what transformers makes.
    """
    if mask is None:
        return None
    if config._attn_implementation in ("sdpa", "eager"):
        hide = torch.zeros(mask.shape, dtype=hidden.dtype, device=mask.device)
        return hide.masked_fill_(~mask, torch.finfo(hidden.dtype).min)[:, None, None, :]
    made = create_bidirectional_mask(config=config, inputs_embeds=hidden, attention_mask=mask)
    if made is not None and not isinstance(made, Tensor):
        raise BadValue(
            f"Attention {config._attn_implementation!r} cannot drop rows; load with attn_implementation='sdpa'."
        )
    return made


def trim_mask(mask: Tensor | None, rows: Tensor, length: int) -> Tensor | None:
    """Some rows of an attention mask of two or four dimensions, cut to `length`."""
    if mask is None:
        return None
    mask = mask[..., :length] if mask.dim() == 2 or mask.shape[-2] == 1 else mask[..., :length, :length]
    return mask if mask.shape[0] == 1 else mask.index_select(0, rows)
