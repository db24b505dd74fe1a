"""AdaptiveModel: a transformers model with early exits."""

from __future__ import annotations

import copy
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import ModelOutput

from offramp import policies
from offramp.answers.answer import Answer
from offramp.core.batch import Batch
from offramp.core.loop import run, run_all_exits
from offramp.core.runner import Runner
from offramp.core.stepper import ExitOutput
from offramp.errors import BadModel, BadValue
from offramp.files.load_errors import loading
from offramp.files.writing import apply_umask, replace_files
from offramp.model import card, guarantee
from offramp.model.attach import HUB_OPTIONS, ExitOptions, attach
from offramp.model.config import AdaptiveConfig, gated_families
from offramp.model.exit_spec import QUERIES, QUERY_WIDTH
from offramp.model.exits import Exits
from offramp.model.folder import AUTO_CLASSES, AUTO_MAP, REMOTE_CODE, REMOTE_CODE_FILE, copy_exports, exports_in
from offramp.model.hub import upload
from offramp.model.loading import check_model_type, with_dtype
from offramp.model.tokenizer import load_tokenizer
from offramp.originals.width.gated_layers import GatedLayers
from offramp.originals.width.gates import Gates
from offramp.originals.width.spec import parse_width
from offramp.policies import Policy
from offramp.policies.thresholds import Threshold
from offramp.runtimes.replay import Replay
from offramp.runtimes.torch import TorchStepper

__all__ = ["AdaptiveModel", "AdaptiveOutput"]

logger = logging.getLogger("offramp")


@dataclass
class AdaptiveOutput(ModelOutput):
    """The output of `AdaptiveModel.forward`; the fields `exit_*` are set in training and with `output_exits=True`."""

    loss: Tensor | None = None
    logits: Tensor | None = None  # (rows, classes) or (rows, tokens, labels); for question answering a summary
    start_logits: Tensor | None = None  # (rows, tokens), question answering only, at the exit of each row
    end_logits: Tensor | None = None
    exit_layer: Tensor | None = None  # (rows,); 0: the embeddings
    exit_logits: Tensor | None = None  # (rows, exits, classes)
    exit_uncertainty: Tensor | None = None  # (rows, exits), if the model has a learning-to-exit module
    exits: tuple[ExitOutput, ...] | None = None  # in training: separate outputs, so that unused heads get no gradient


class AdaptiveModel(PreTrainedModel):
    """An encoder with exits on its layers and an exit policy.

    >>> from offramp import AdaptiveModel
    >>> model = AdaptiveModel.from_pretrained("folder")                        # doctest: +SKIP
    >>> for answer in model.predict(["a lovely film", "a dull one"]):          # doctest: +SKIP
    ...     print(answer.label, answer.score, answer.exit_layer)
    """

    config_class = AdaptiveConfig
    base_model_prefix = "backbone"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = []

    def __init__(self, config: AdaptiveConfig):
        super().__init__(config)
        self.backbone: nn.Module = config.family.build(config.backbone)
        self.exits = Exits(config)
        self.gates = build_gates(config)
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._hub_options: dict[str, Any] = {}
        self.gates_are_open = False  # disables pruning, for training without it; not saved
        self.gradient_equilibrium = False  # see TorchStepper; set by training recipes, not saved
        self.post_init()

    # -- loading and saving ----------------------------------------------------------------------

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Do nothing: with `trust_remote_code=True`, transformers would copy offramp's code into saved folders."""

    @classmethod
    def from_backbone(
        cls,
        checkpoint: str | os.PathLike[str],
        *,
        exits: str | Iterable[int] = "all",
        heads: str = "auto",
        pooling: str = "auto",
        num_labels: int | None = None,
        labels: Sequence[str] | None = None,
        problem_type: str | None = None,
        num_layers: int | None = None,
        policy: str | Policy = "never",
        lte: bool = False,
        fresh_head: bool = False,
        queries: int = QUERIES,
        query_width: int = QUERY_WIDTH,
        convolution: int = 0,
        interaction: int = 0,
        answer_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AdaptiveModel:
        """Add exits to a pre-trained encoder or a fine-tuned classifier.

        New heads have random weights and must be trained. A classifier keeps its own head and labels at the last exit.

        Args:
            checkpoint: A folder, or a model's name on the Hub.
            exits: "all", or a list of layers, counted from 1; 0 reads the embeddings, before any layer, and "auto" is
                0 and all layers. The last layer always has an exit.
            heads: linear, pooler, shared, family or attention (default: "auto").
            pooling: first or mean (default: "auto", which depends on the heads).
            num_labels: Number of labels, if they have no names.
            labels: Names of the labels. For a classifier, its own names in any order or case.
            problem_type: As in transformers, such as "multi_label_classification".
            num_layers: Use only the first `num_layers` layers.
            policy: The exit policy, such as "entropy:0.2".
            lte: Add BERxiT's learning-to-exit module.
            fresh_head: Replace a classifier's own head with a new one, for example for other labels.
            queries: Number of queries of attention heads.
            query_width: Size of each query's output.
            convolution: Channels of a convolution over neighbouring tokens, for attention heads on layers 0 to 2.
            interaction: Projections by which tokens of a row are compared, for attention heads on layers 0 to 4.
            answer_options: For a ranking: `activation`, `template` and `top_k` (default: what the checkpoint implies).
            options: Passed to `from_pretrained` of transformers, such as `revision` and `dtype`.
        """
        exit_options = ExitOptions(
            exits,
            heads,
            pooling,
            num_labels,
            labels,
            problem_type,
            num_layers,
            policy,
            lte,
            fresh_head,
            queries,
            query_width,
            convolution,
            interaction,
            answer_options,
        )
        options = with_dtype(options)
        attached = attach(str(checkpoint), exit_options, **options)
        model = cls(attached.config)
        missing, unexpected = model.load_state_dict(attached.weights, strict=False)
        missing = [key for key in missing if key.startswith("backbone.")]
        if missing or unexpected:
            keys = ", ".join([*missing, *unexpected][:5])
            raise BadModel(f"{checkpoint}: missing or unexpected weights in the checkpoint: {keys}.")
        model.to(attached.config.backbone.dtype)
        model.config._name_or_path = model.name_or_path = str(checkpoint)
        if not Path(checkpoint).is_dir():
            model.config.card = {"base_model": str(checkpoint)}
        model._hub_options = {key: options[key] for key in HUB_OPTIONS if key in options}
        model.config.resolve_policy(policy)
        return model.eval()

    @classmethod
    def from_pretrained(cls, name: Any, *args: Any, **options: Any) -> Any:
        """Load a model folder, or a model from the Hub; missing and unexpected weights raise `BadModel`.

        The dtype is float32 unless `dtype` or `device_map` is set, because half precision is slow on most CPUs.
        """
        return_report = options.pop("output_loading_info", False)
        options = with_dtype(options)
        hub_options = {key: options[key] for key in HUB_OPTIONS if key in options}
        with loading(name):
            if "config" not in options:
                check_model_type(name, hub_options)
            options["ignore_mismatched_sizes"] = True  # reported below
            model, report = super().from_pretrained(name, *args, output_loading_info=True, **options)
        errors = [
            f"{key} has shape {tuple(shape)} instead of {tuple(expected)}"
            for key, shape, expected in sorted(report["mismatched_keys"])
        ]
        errors += [f"{key} is missing" for key in sorted(report["missing_keys"])]
        errors += [f"{key} is unexpected" for key in sorted(report["unexpected_keys"])]
        if errors:
            more = f" and {len(errors) - 5} more" if len(errors) > 5 else ""
            raise BadModel(f"The weights of {name} do not match its config.json: {', '.join(errors[:5])}{more}.")
        model._hub_options = hub_options
        model._drop_stale_guarantee(str(name))
        return (model, report) if return_report else model

    def save_pretrained(self, save_directory: Any, *args: Any, exports: bool = True, **options: Any) -> None:
        """Write a model folder: config, weights, tokenizer, and a model card unless you have written your own.

        The guarantee, its calibration results and the exports are saved only if the model has not changed since;
        with `exports=False`, no exports are saved.
        """
        self._drop_stale_guarantee("The model")
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, *args, **options)
        folder = Path(save_directory)
        if not options.get("is_main_process", True) or not folder.is_dir():
            return
        for file in folder.glob("model*.safetensors"):
            apply_umask(file)
        evidence = Path(self.name_or_path) / card.EVIDENCE
        if self.config.calibrated and evidence.is_file() and evidence.parent.resolve() != folder.resolve():
            shutil.copyfile(evidence, folder / card.EVIDENCE)
        if self._tokenizer is not None or self.name_or_path:
            try:
                self.tokenizer.save_pretrained(folder)
            except BadModel as err:
                logger.warning("Saved without a tokenizer: %s", err)
        (folder / REMOTE_CODE_FILE).write_text(REMOTE_CODE, encoding="utf-8")
        config = self.config
        if self.name_or_path and exports:
            config = self._save_exports(folder)
        replace_files(card.new_card(config, folder))

    def _save_exports(self, folder: Path) -> AdaptiveConfig:
        """Copy the exports of the folder that the model was loaded from; return the config as saved."""
        if Path(self.name_or_path).is_dir():
            copy_exports(Path(self.name_or_path), folder)
        config: AdaptiveConfig = self.config
        backend = (config.adapted_for or {}).get("backend", "torch")
        if backend in ("torch", *exports_in(folder, config.exits)):
            return config
        config = copy.deepcopy(config)
        config.adapted_for = None
        config.save_pretrained(folder)
        if not Path(self.name_or_path).is_dir():
            logger.warning("The %s export of %s was not saved with the model.", backend, self.name_or_path)
        return config

    def _drop_stale_guarantee(self, name: str) -> None:
        if not self.config.calibrated:
            return
        try:
            fingerprint = self.runner().fingerprint
        except BadModel:  # no tokenizer, so this is not the tested model
            fingerprint = ""
        guarantee.drop_if_stale(self.config, name, fingerprint, "torch", self.stepper.dtype)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        commit_message: str = "Upload an adaptive model",
        create_pr: bool = False,
    ) -> str:
        """Upload the model folder with card, tokenizer, calibration results and exports; return the commit's URL."""
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            options = {"revision": revision, "commit_message": commit_message, "create_pr": create_pr}
            return upload(Path(folder), repo_id, private, token, **options)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the model folder, loaded on first use. Can be set."""
        if self._tokenizer is None:
            if not self.name_or_path:
                raise BadModel("The model was not loaded from a folder and has no tokenizer. Set model.tokenizer.")
            self._tokenizer = load_tokenizer(str(self.name_or_path), self.config, self._hub_options)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def resize_token_embeddings(self, *args: Any, **options: Any) -> nn.Module:
        """Resize the word embeddings and update the backbone's config."""
        embeddings: nn.Embedding = super().resize_token_embeddings(*args, **options)
        self.config.backbone.vocab_size = embeddings.num_embeddings
        return embeddings

    # -- prediction ------------------------------------------------------------------------------

    @property
    def stepper(self) -> TorchStepper:
        """The backbone and its exit heads as a stepper for the early-exit loop."""
        config: AdaptiveConfig = self.config
        equilibrium = self.training and self.gradient_equilibrium
        width = None if self.gates is None or self.gates_are_open else GatedLayers(self.gates)
        parts = (config.family, self.backbone, self.exits, config.answer_type)
        return TorchStepper(*parts, equilibrium, width, bool(config.faithful))

    def add_gates(self, width: dict[str, Any]) -> None:
        """Add untrained gates to every layer; they prune about half of the heads and channels until trained."""
        if self.gates is not None:
            raise BadValue(f"{self.name_or_path or 'The model'} already has gates. Start from a model without gates.")
        if not self.config.family.has_gates:
            raise BadValue(
                f"Gates are not supported for {self.config.family.name}. Supported: {', '.join(gated_families())}."
            )
        gate_options = parse_width(width)
        assert gate_options is not None
        gate_options.check(self.config.num_heads, self.config.num_channels)
        self.config.width = gate_options.to_dict()
        self.gates = build_gates(self.config)
        assert self.gates is not None
        for module in self.gates.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=self.config.initializer_range)
                nn.init.zeros_(module.bias)
        self.gates.to(self.device)

    def runner(self, max_length: int | None = None) -> Runner:
        """Return a runner: the model with its tokenizer, for prediction, evaluation and calibration."""
        return Runner(str(self.name_or_path), self.config, self.tokenizer, self.stepper, max_length)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        marks: Tensor | None = None,
        policy: str | Policy | None = None,
        threshold: Threshold | None = None,
        max_layers: int | None = None,
        output_exits: bool = False,
    ) -> AdaptiveOutput:
        """Run a batch; in evaluation mode with early exits, by `policy` or else the config's policy.

        In training mode, with labels or with `output_exits`, all exits are computed for all rows, and the loss is the
        sum of their losses. In evaluation mode `logits` are still those at the exit that the policy chooses.

        Question answering: pass `labels` (rows, 2), or `start_positions` and `end_positions`. `marks` (rows, tokens)
        are 1 where an answer may end and 3 where it may start or end (default: everywhere).
        """
        batch = Batch.from_tensors(input_ids, attention_mask, token_type_ids, marks)
        if start_positions is not None and end_positions is not None:
            labels = torch.stack([start_positions.view(-1), end_positions.view(-1)], dim=1)
        stepper = self.stepper
        exit_policy = None if self.training else self.config.resolve_policy(policy, threshold)
        if exit_policy is not None and labels is None and not output_exits:
            result = run(stepper, batch, exit_policy, max_layers)
            token_outputs = self.config.answer_type.model_outputs(result.tokens, input_ids.shape[1])
            exit_layer = torch.from_numpy(result.layer).to(result.logits.device)
            return AdaptiveOutput(**{"logits": result.logits, "exit_layer": exit_layer, **token_outputs})
        outputs = run_all_exits(stepper, batch)
        loss = None
        if labels is not None:
            losses = [output.answer_type.loss(output.raw, labels) for output in self.trained_exits(outputs)]
            loss = torch.stack(losses).sum()
        result = run(Replay(outputs), batch, policies.Never() if exit_policy is None else exit_policy, max_layers)
        uncertainty = [output.uncertainty for output in outputs if output.uncertainty is not None]
        token_outputs = self.config.answer_type.model_outputs(result.tokens, input_ids.shape[1])
        return AdaptiveOutput(
            **{"logits": result.logits, **token_outputs},
            loss=loss,
            exit_layer=torch.from_numpy(result.layer).to(result.logits.device),
            exit_logits=torch.stack([output.logits for output in outputs], dim=1),
            exit_uncertainty=torch.stack(uncertainty, dim=1) if uncertainty else None,
            exits=outputs if self.training else None,
        )

    def trained_exits(self, outputs: tuple[ExitOutput, ...]) -> list[ExitOutput]:
        """Return the outputs that the loss is computed on: all but a faithful model's ramp, which is never trained."""
        num_ramps = len(outputs) - len(self.config.exit_specs)
        return [output for output in outputs if not (num_ramps and output.exit == len(outputs) - 1)]

    def predict(
        self,
        texts: Iterable[Any],
        *,
        policy: str | Policy | None = None,
        threshold: Threshold | None = None,
        max_layers: int | None = None,
        batch_tokens: int | None = None,
        chunk: int | None = None,
        progress: bool | None = None,
    ) -> Iterator[Answer]:
        """Yield one prediction per text or pair of texts, in their order; `texts` may be an endless iterator.

        Texts are read in chunks, sorted by length and batched, so memory use is bounded. Invalid options raise at once.

        Args:
            texts: Texts, or pairs of texts.
            policy: The exit policy, such as "entropy:0.2" (default: the model's).
            threshold: The policy's threshold (default: the model's).
            max_layers: Maximum number of layers to run.
            batch_tokens: Maximum number of padded tokens in a batch (default: depends on the device).
            chunk: Number of texts to read before the first prediction (default: 4096). Use 1 for live queues.
            progress: Show a progress bar (default: on a terminal, if it takes long).
        """
        return self.runner().predict(
            texts,
            policy=policy,
            threshold=threshold,
            max_layers=max_layers,
            batch_tokens=batch_tokens,
            chunk=chunk,
            progress=progress,
        )

    def rank(self, query: str, documents: Sequence[str], *args: Any, **options: Any) -> list[dict[str, Any]]:
        """Rank documents for a query, with the names and results of `CrossEncoder.rank` of sentence-transformers.

        Args:
            query: The query.
            documents: The candidate documents. Without any, the result is empty.
            args: Further arguments of `Runner.rank`: `top_k` and `return_documents`.
            options: The same by name, `policy`, and other arguments of `predict`.

        Returns:
            A list of `{"corpus_id", "score"}`, best first.

        Examples:
            >>> model = offramp.AdaptiveModel.from_pretrained("my-reranker")
            >>> for result in model.rank("who wrote it?", documents, top_k=3):
            ...     print(result["corpus_id"], result["score"])
        """
        return self.runner().rank(query, documents, *args, **options)

    def answer(self, *example: str, **options: Any) -> Any:
        """Return the prediction for one text, one pair, or one question and its context; see `predict` for options."""
        (prediction,) = self.runner().predict([example[0] if len(example) == 1 else example], **options)
        return prediction


def build_gates(config: AdaptiveConfig) -> Gates | None:
    """Build the gates of a config; None if it has none."""
    if config.gating is None:
        return None
    eps = float(getattr(config.backbone, "layer_norm_eps", 1e-12))
    sizes = (config.num_layers, config.hidden_size, config.num_heads, config.num_channels)
    return Gates(config.gating, *sizes, eps, config.faithful)


for name in AUTO_CLASSES:
    getattr(transformers, name).register(AdaptiveConfig, AdaptiveModel, exist_ok=True)
