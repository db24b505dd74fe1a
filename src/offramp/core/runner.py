"""A loaded model with its tokenizer: predict, and encode and run batches for evaluation and calibration.

The runner is the same for all backends; a backend provides the stepper.
"""

from __future__ import annotations

import copy
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

from offramp.answers.answer import Answer, Answers, RowOutputs, concatenate
from offramp.answers.answer_type import Encoder
from offramp.core.batch import Batch, EncodedRows
from offramp.core.chunks import CHUNK, Chunk, chunks, resolve_batch_tokens
from offramp.core.loop import exits_within, run
from offramp.core.stepper import ExitPoint, Stepper
from offramp.data.input_data import is_table
from offramp.errors import BadInput, BadModel, BadValue
from offramp.model import fingerprint
from offramp.model.config import AdaptiveConfig
from offramp.policies import Policy
from offramp.policies.thresholds import Threshold

__all__ = ["Backend", "Runner"]

logger = logging.getLogger("offramp")


class Backend(Stepper[Any], Protocol):
    """A stepper with a description of itself, which can also run the full model without early exits."""

    @property
    def backend(self) -> str:
        """The backend's name."""
        ...

    @property
    def dtype(self) -> str:
        """The dtype of its computations, such as float32."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of its batches."""
        ...

    @property
    def threads(self) -> int:
        """The number of CPU threads."""
        ...

    def weights_fingerprint(self) -> str:
        """Return a hash of the weights."""
        ...

    def untrained_layers(self) -> tuple[int, ...]:
        """Return the layers of exits whose heads have not been trained."""
        ...

    def inference_mode(self) -> AbstractContextManager[None]:
        """Return a context manager that disables dropout and gradients."""
        ...

    def full_model(self, batch: Batch) -> Tensor:
        """Return the full model's logits, computed without early exits."""
        ...


@dataclass(frozen=True)
class Runner:
    """A loaded model: config, tokenizer and stepper. Created by `offramp.load` and `AdaptiveModel.runner`."""

    name: str
    config: AdaptiveConfig
    tokenizer: PreTrainedTokenizerBase
    stepper: Backend
    max_length: int | None = None  # overrides the model's maximum length

    def __post_init__(self) -> None:
        maximum = self.config.family.max_length(self.config.backbone)
        length = self.tokenizer.model_max_length  # transformers does not validate it
        if not isinstance(length, int | float) or isinstance(length, bool) or not length >= 1:
            raise BadModel(
                f"{self.name}: tokenizer_config.json: `model_max_length` must be at least 1, got {length!r:.60}."
            )
        minimum = self.config.answer_type.min_row_length(self.tokenizer.num_special_tokens_to_add(pair=True))
        if not minimum <= self.limit <= maximum:
            raise BadValue(
                f"The maximum length must be between {minimum} (the special tokens and one more) and {maximum} tokens, "
                f"got {self.limit}."
            )

    @property
    def backend(self) -> str:
        """The name of the backend."""
        return self.stepper.backend

    @property
    def dtype(self) -> str:
        """The dtype of its computations."""
        return self.stepper.dtype

    @property
    def device(self) -> torch.device:
        """The device that it runs on."""
        return self.stepper.device

    @property
    def limit(self) -> int:
        """The maximum number of tokens; longer texts are truncated."""
        length = self.config.max_tokens if self.max_length is None else self.max_length
        if length is not None:
            return length
        return int(min(self.tokenizer.model_max_length, self.config.family.max_length(self.config.backbone)))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that the predictions depend on, except the policy."""
        weights = self.stepper.weights_fingerprint()
        facts = (self.limit, self.backend, self.dtype, self.device.type)
        return fingerprint.fingerprint_model(self.config, self.tokenizer, weights, *facts)

    # -- prediction ------------------------------------------------------------------------------

    def chunks(
        self,
        texts: Iterable[Any],
        batch_tokens: int | None = None,
        progress: bool | None = None,
        quiet: bool = False,
        chunk: int | None = None,
        together: bool = False,
        title: str = "Predicting",
    ) -> Iterator[Chunk]:
        """Encode texts in chunks of batches on this device; with `together` no group is split across batches.

        `title` is the name of the pass in its progress; `quiet` does not report truncated texts.
        """
        if isinstance(texts, str):
            raise BadInput("predict takes a list or an iterator of texts, got a string. Pass a single text as a list.")
        if isinstance(texts, Mapping) or is_table(texts):
            raise BadInput("predict takes texts, got a table. Pass the column of texts, such as table['text'].")
        width = self.config.gating
        if width is not None and width.first == "all" and width.pad_to is None:
            raise BadModel(
                f"{self.name}: its first gate depends on padding, but the padded length of the training is unknown. "
                "Convert it again with `pad_to=` set to the maximum length of the training."
            )
        batch_tokens = resolve_batch_tokens(batch_tokens, self.device)
        if chunk is not None and chunk < 1:
            raise BadValue(f"`chunk` must be at least 1, got {chunk}.")
        encoded = chunks(
            self.encoder(),
            texts,
            batch_tokens,
            self.device,
            pad=self.pad_token_id,
            limit=self.limit,
            title=title,
            progress=progress,
            quiet=quiet,
            size=chunk or CHUNK,
            together=together,
            names=self.config.answer_type.input_names,
            describe=self.config.answer_type.describe_truncated,
        )
        return (self._check_token_ids(chunk) for chunk in encoded)

    def encoder(self) -> Encoder:
        """Return the function that encodes examples into rows for this model."""
        return self._encoder

    @cached_property
    def _encoder(self) -> Encoder:
        config = self.config
        return config.answer_type.encoder_with_options(
            self.tokenizer, self.limit, config.reads_pairs, config.answer_options
        )

    @property
    def pad_token_id(self) -> int:
        """The tokenizer's padding token."""
        return int(self.tokenizer.pad_token_id or 0)

    @cached_property
    def _vocabulary_sizes(self) -> tuple[int, int]:
        """The number of tokens and of token types (0: none) of the backbone; attributes of its config are slow."""
        backbone = self.config.backbone
        return backbone.vocab_size, getattr(backbone, "type_vocab_size", 0)

    def _check_token_ids(self, chunk: Chunk) -> Chunk:
        """Raise if a token id lies outside of the backbone's embeddings: the tokenizer is another model's."""
        tokens, types = self._vocabulary_sizes
        for name, encoded, pad, size in (
            ("tokens", chunk.rows.ids, chunk.pad, tokens),
            ("token types", chunk.rows.types, 0, types),
        ):
            if encoded is None or not size:  # this backbone has no token types
                continue
            high = max(pad, int(encoded.values.view(np.uint32).max(initial=0)))  # unsigned: negative ids are large
            if high >= size or pad < 0:
                raise BadModel(
                    f"{self.name}: the tokenizer produces {name} up to {high}, but the backbone only has {size}. "
                    "Replace the tokenizer files in the model folder with the backbone's own."
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
        quiet: bool = False,
    ) -> Iterator[Answers]:
        """Yield predictions as arrays, chunk by chunk, in the order of the texts; invalid options raise at once.

        A chunk of `chunk` texts (default: 4096) is read before its first prediction. With `chunk=1` every text is
        predicted before the next is read, for live queues. `quiet` does not report truncated texts.
        """
        is_own = policy is None and threshold is None
        exit_policy = self._own_policy if is_own else self.config.resolve_policy(policy, threshold)
        *early, last = exits_within(self.stepper.exits, max_layers)
        self.warn_untrained([*filter(exit_policy.needs_exit, early), last])
        chunks = self.chunks(texts, batch_tokens, progress, quiet, chunk, exit_policy.sees_groups)
        return (self.decode(self.outputs(chunk, exit_policy, max_layers), chunk.rows) for chunk in chunks)

    @property
    def _own_policy(self) -> Policy:
        """The model's policy; it is parsed and checked again if the config changed, not for every call."""
        saved = (self.config.policy, self.config.exits)
        if self._parsed_policy.get("saved") != saved:
            self._parsed_policy.update(saved=copy.deepcopy(saved), policy=self.config.resolve_policy())
        policy: Policy = self._parsed_policy["policy"]
        return policy

    @cached_property
    def _parsed_policy(self) -> dict[str, Any]:
        return {}

    def warn_untrained(self, points: Sequence[ExitPoint]) -> None:
        """Warn if exits that may be used have untrained heads."""
        untrained = self.stepper.untrained_layers()
        if layers := [point.layer for point in points if point.layer in untrained]:
            where = f"layers {', '.join(map(str, layers))}" if len(layers) > 1 else f"layer {layers[0]}"
            logger.warning(
                "%s: the exits on %s are untrained, so their predictions are random. Train them with `offramp train`.",
                self.name,
                where,
            )

    def answer(self, texts: Iterable[Any], **options: Any) -> Any:
        """Return all predictions at once, as arrays (see `Answers`); options are those of `stream`."""
        chunks = list(self.stream(texts, **options))
        if chunks:
            return concatenate(chunks)
        config = self.config
        columns, empty = config.answer_type.num_columns(config.num_labels), np.empty(0, np.int64)
        return config.answer_type.decode(
            RowOutputs(np.empty((0, columns), np.float32), empty, empty), empty, (), config.decoding
        )

    def predict(self, texts: Iterable[Any], **options: Any) -> Iterator[Answer]:
        """Yield one prediction per text, in the order of the texts; options are those of `stream`."""
        chunks = self.stream(texts, **options)
        return (answer for answers in chunks for answer in answers)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *,
        policy: str | Policy | None = None,
        threshold: Threshold | None = None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Rank documents for a query, with the names and results of `CrossEncoder.rank` of sentence-transformers.

        Args:
            query: The query.
            documents: The candidate documents. Without any, the result is empty.
            top_k: Number of results (default: all). If it is larger than the policy's k, the policy keeps that many.
            return_documents: Whether results include the text of the document.
            policy: Exit policy, instead of the model's.
            threshold: Threshold of the policy.
            options: Other arguments of `predict`.

        Returns:
            A list of `{"corpus_id", "score"}`, best first, with `text` if requested. A document that exited early has
            an estimated score and the key `estimated`.

        Examples:
            >>> model = offramp.load("my-reranker")
            >>> for result in model.rank("who wrote it?", documents, top_k=3):
            ...     print(result["corpus_id"], result["score"])
        """
        if not self.config.answer_type.compares_rows:
            raise BadModel(f"{self.name} is a model for {self.config.answer_type.title}, not for rankings.")
        if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1):
            raise BadValue(f"`top_k` must be a positive integer, got {top_k!r:.60}.")
        if isinstance(documents, str) or not isinstance(documents, Iterable):
            raise BadInput(f"`documents` must be a list of texts, got {documents!r:.60}.")
        documents = list(documents)
        if not documents:
            return []
        exit_policy = self.config.resolve_policy(policy, threshold).keeping(top_k)
        (answer,) = self.answer([{"query": query, "documents": documents}], policy=exit_policy, quiet=True, **options)
        results: list[dict[str, Any]] = answer.results(top_k, documents if return_documents else None)
        return results

    def outputs(self, chunk: Chunk, policy: Policy, max_layers: int | None = None) -> RowOutputs:
        """Return the logits, exit and layer of each row of a chunk."""
        with self.stepper.inference_mode():
            batches = [run(self.stepper, batch, policy, max_layers) for batch in chunk.batches()]
            logits = torch.cat([batch.logits for batch in batches]).float().cpu().numpy()
        exits = np.concatenate([batch.exit for batch in batches])
        layers = np.concatenate([batch.layer for batch in batches])
        order = chunk.inverse_order
        if not np.isfinite(logits).all():
            row = int(np.flatnonzero(~np.isfinite(logits).all(-1)[order])[0])
            raise BadInput(
                f"The logits of text {chunk.offset + int(chunk.rows.group[row]) + 1} are NaN or infinite. The weights "
                "are damaged, or the dtype's range is too small."
            )
        return RowOutputs(logits[order], exits[order], layers[order])

    def decode(self, outputs: RowOutputs, rows: EncodedRows) -> Answers:
        """Return the predictions for the encoded examples."""
        answer_type = self.config.answer_type
        outputs = replace(outputs, logits=answer_type.locate(outputs.logits, rows))
        return answer_type.decode(outputs, rows.group, rows.examples, self.config.decoding)
