"""A model that is ready to answer: what predicting, recording, timing, evaluating and calibrating take.

It knows no torch module: a backend gives it a stepper, and everything above the loop is the same on all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from offramp.answers.answer import Answer, Answers, RowOutputs, joined
from offramp.answers.answer_type import Encoder
from offramp.core.batch import Batch, EncodedRows
from offramp.core.chunks import CHUNK, Chunk, chunks, padded_tokens
from offramp.core.loop import run, within_budget
from offramp.core.stepper import ExitPoint, Stepper
from offramp.data.given import is_table
from offramp.errors import BadInput, BadModel, BadValue
from offramp.model import fingerprint
from offramp.model.config import AdaptiveConfig
from offramp.policies import Policy
from offramp.policies.thresholds import Threshold

__all__ = ["Backend", "Runner"]

logger = logging.getLogger("offramp")


class Backend(Stepper[Any], Protocol):
    """A stepper that can say what it is and run the plain model, too."""

    @property
    def backend(self) -> str:
        """Its name."""
        ...

    @property
    def dtype(self) -> str:
        """What it computes in, such as float32."""
        ...

    @property
    def device(self) -> torch.device:
        """Where batches go."""
        ...

    @property
    def threads(self) -> int:
        """Of the CPU."""
        ...

    def weights(self) -> str:
        """The fingerprint of the weights."""
        ...

    def untrained(self) -> tuple[int, ...]:
        """The layers whose heads were never trained."""
        ...

    def answering(self) -> AbstractContextManager[None]:
        """While it answers: no dropout, no gradients."""
        ...

    def plain(self, batch: Batch) -> Tensor:
        """The full model's logits, as one would run it without offramp."""
        ...


@dataclass(frozen=True)
class Runner:
    """A config, a tokenizer and a stepper; `offramp.load` makes one, `AdaptiveModel.runner` too."""

    name: str
    config: AdaptiveConfig
    tokenizer: PreTrainedTokenizerBase
    stepper: Backend
    max_length: int | None = None  # in place of the model's own

    def __post_init__(self) -> None:
        longest = self.config.family.max_length(self.config.backbone)
        most = self.tokenizer.model_max_length  # as its file says; transformers takes anything
        if not isinstance(most, int | float) or isinstance(most, bool) or not most >= 1:
            raise BadModel(
                f"{self.name}: tokenizer_config.json: `model_max_length` is {most!r:.60}; it is a number from 1."
            )
        least = self.config.answer_type.shortest_row(self.tokenizer.num_special_tokens_to_add(pair=True))
        if not least <= self.limit <= longest:
            raise BadValue(
                f"The maximum length is {self.limit} tokens; this model takes {least} (its special tokens and one) to "
                f"{longest}."
            )

    @property
    def backend(self) -> str:
        """What runs it."""
        return self.stepper.backend

    @property
    def dtype(self) -> str:
        """What it computes in."""
        return self.stepper.dtype

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.stepper.device

    @property
    def limit(self) -> int:
        """The longest text in tokens; the rest is cut off. Asked for, or the model's own, or all that fits."""
        own = self.config.max_tokens if self.max_length is None else self.max_length
        if own is not None:
            return own
        return int(min(self.tokenizer.model_max_length, self.config.family.max_length(self.config.backbone)))

    @cached_property
    def fingerprint(self) -> str:
        """Of everything that the exits' answers depend on."""
        weights = self.stepper.weights()
        return fingerprint.of_model(self.config, self.tokenizer, weights, self.limit, self.backend, self.dtype)

    # -- answering -------------------------------------------------------------------------------

    def chunks(
        self,
        texts: Iterable[Any],
        batch_tokens: int | None = None,
        progress: bool | None = None,
        quiet: bool = False,
        chunk: int | None = None,
        together: bool = False,
    ) -> Iterator[Chunk]:
        """A stream's examples as chunks of batches on this device; `together`: no group is cut by a batch's end."""
        if isinstance(texts, str):
            raise BadInput("predict takes a list or an iterator of texts; put the one text into a list.")
        if isinstance(texts, Mapping) or is_table(texts):
            raise BadInput("predict takes texts; give it the column that holds them, such as table['text'].")
        width = self.config.gating
        if width is not None and width.first == "all" and width.pad_to is None:
            raise BadModel(
                f"{self.name}: its first gate reads padding, and nothing says how far its training padded rows; "
                "convert it again with `pad_to=`, the training's maximum length."
            )
        budget = padded_tokens(batch_tokens, self.device)
        if chunk is not None and chunk < 1:
            raise BadValue(f"`chunk` is {chunk}; it is at least 1.")
        found = chunks(
            self.encoder(),
            texts,
            budget,
            self.device,
            pad=self.pad,
            limit=self.limit,
            progress=progress,
            quiet=quiet,
            size=chunk or CHUNK,
            together=together,
        )
        return (self._checked(chunk) for chunk in found)

    def encoder(self) -> Encoder:
        """What makes rows of examples, as this model reads them."""
        return self.config.answer_type.encoder(self.tokenizer, self.limit, self.config.reads_pairs)

    @property
    def pad(self) -> int:
        """The padding token."""
        return int(self.tokenizer.pad_token_id or 0)

    def _checked(self, chunk: Chunk) -> Chunk:
        """A chunk whose tokens the backbone knows; a tokenizer of another model makes others."""
        backbone = self.config.backbone
        for name, made, pad, size in (
            ("tokens", chunk.rows.ids, chunk.pad, backbone.vocab_size),
            ("token types", chunk.rows.types, 0, getattr(backbone, "type_vocab_size", 0)),
        ):
            if made is None or not size:  # such a backbone does not read them
                continue
            low, high = int(made.values.min(initial=pad)), int(made.values.max(initial=pad))
            if low < 0 or high >= size:
                raise BadModel(
                    f"{self.name}: the tokenizer makes {name} up to {high}, and the backbone knows 0 to {size - 1}; "
                    "put the backbone's own tokenizer files beside the model."
                )
        return chunk

    def stream(
        self,
        texts: Iterable[Any],
        *,
        policy: str | Policy | None = None,
        threshold: Threshold | None = None,
        max_layers: int | None = None,
        batch_tokens: int | None = None,
        chunk: int | None = None,
        progress: bool | None = None,
    ) -> Iterator[Answers]:
        """Answers as arrays, chunk by chunk, in the texts' order; mistakes in the options raise here.

        A chunk is read whole before its first answer: 4,096 texts, or as many as `chunk` says. With 1 every text is
        answered before the next is asked for, as a live queue needs it.
        """
        chosen = self.config.choose(policy, threshold)
        *early, last = within_budget(self.stepper.exits, max_layers)
        self.warn_of_untrained([*filter(chosen.listens, early), last])
        chunks = self.chunks(texts, batch_tokens, progress, chunk=chunk, together=chosen.sees_groups)
        return (self._answer(chunk, chosen, max_layers) for chunk in chunks)

    def warn_of_untrained(self, points: Sequence[ExitPoint]) -> None:
        """Say it where answers are to come from heads that were never trained."""
        untrained = self.stepper.untrained()
        if random := [point.layer for point in points if point.layer in untrained]:
            on = f"layers {', '.join(map(str, random))}" if len(random) > 1 else f"layer {random[0]}"
            logger.warning(
                "%s: the exits on %s were never trained and answer at random; `offramp train` trains them.",
                self.name,
                on,
            )

    def answer(self, texts: Iterable[Any], **options: Any) -> Any:
        """All answers at once, as arrays (see `Answers`); options are those of `stream`."""
        found = list(self.stream(texts, **options))
        if found:
            return joined(found)
        config = self.config
        columns, none = config.answer_type.columns(config.num_labels), np.empty(0, np.int64)
        return config.answer_type.decode(
            RowOutputs(np.empty((0, columns), np.float32), none, none), none, (), config.decoding
        )

    def predict(self, texts: Iterable[Any], **options: Any) -> Iterator[Answer]:
        """One answer after the other, in the texts' order; options are those of `stream`."""
        found = self.stream(texts, **options)
        return (answer for answers in found for answer in answers)

    def outputs(self, chunk: Chunk, policy: Policy, max_layers: int | None = None) -> RowOutputs:
        """What rows exited with, and where, in the chunk's order."""
        with self.stepper.answering():
            batches = [run(self.stepper, batch, policy, max_layers) for batch in chunk.batches()]
            logits = torch.cat([batch.logits for batch in batches]).float().cpu().numpy()
            places = torch.cat([torch.stack([batch.exit, batch.layer], 1) for batch in batches]).cpu().numpy()
        back = chunk.back
        if not np.isfinite(logits).all():
            row = int(np.flatnonzero(~np.isfinite(logits).all(-1)[back])[0])
            raise BadInput(
                f"Text {chunk.first + int(chunk.rows.group[row]) + 1} is answered with NaN or infinity; "
                "the model is damaged, or its dtype too small."
            )
        exits, layers = places[back].T
        return RowOutputs(logits[back], exits, layers)

    def _answer(self, chunk: Chunk, policy: Policy, max_layers: int | None) -> Answers:
        return self.decode(self.outputs(chunk, policy, max_layers), chunk.rows)

    def decode(self, outputs: RowOutputs, rows: EncodedRows) -> Answers:
        """The answers to the examples that the rows were made of."""
        answer_type = self.config.answer_type
        outputs = replace(outputs, logits=answer_type.locate(outputs.logits, rows))
        return answer_type.decode(outputs, rows.group, rows.examples, self.config.decoding)
