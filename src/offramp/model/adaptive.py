"""AdaptiveModel: what people hold in their hands."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from huggingface_hub import HfApi
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import ModelOutput

from offramp import policies
from offramp.answers.answer import Answer
from offramp.core.batch import Batch
from offramp.core.loop import every_exit, run
from offramp.core.runner import Runner
from offramp.core.stepper import ExitOutput
from offramp.errors import BadModel, BadValue
from offramp.files.faults import loading
from offramp.files.writing import apply_umask, write_together
from offramp.model import card, guarantee
from offramp.model.attach import HUB_OPTIONS, ExitOptions, attach
from offramp.model.config import QUERIES, QUERY_WIDTH, AdaptiveConfig, gated_families
from offramp.model.exits import Exits
from offramp.model.tokenizer import load_tokenizer
from offramp.originals.width.gates import Gates
from offramp.originals.width.spec import width_of
from offramp.originals.width.walk import GatedLayers
from offramp.policies import Policy
from offramp.policies.thresholds import Threshold
from offramp.runtimes.replay import Replay
from offramp.runtimes.torch import TorchStepper

__all__ = ["AdaptiveModel", "AdaptiveOutput", "check_kind"]

logger = logging.getLogger("offramp")


@dataclass
class AdaptiveOutput(ModelOutput):
    """The answers, and where each row left; every exit's answer in training and on request."""

    loss: Tensor | None = None
    logits: Tensor | None = None  # (rows, classes), at the exit where the row left; of spans their summary
    start_logits: Tensor | None = None  # (rows, tokens), of spans, at the exit where the row left
    end_logits: Tensor | None = None
    exit_layer: Tensor | None = None  # (rows,); 0: on the embeddings
    exit_logits: Tensor | None = None  # (rows, exits, classes)
    exit_uncertainty: Tensor | None = None  # (rows, exits), where the model has an LTE module
    # in training: each exit's answer apart, so that unused heads get no gradient
    exits: tuple[ExitOutput, ...] | None = None


class AdaptiveModel(PreTrainedModel):
    """An encoder that can be stepped, exits that can answer, and a policy that says who may leave.

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
        self.gates = gates_of(config)
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._hub_options: dict[str, Any] = {}
        self.gates_are_open = False  # nothing is pruned; set while a model with gates learns its task, not saved
        self.gradient_equilibrium = False  # in training, see TorchStepper; set by a recipe, not saved
        self.post_init()

    # -- where models come from ------------------------------------------------------------------

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
        **options: Any,
    ) -> AdaptiveModel:
        """Put exits on an encoder or on a fine-tuned classifier (a folder or a name on the Hub).

        `exits` is "all" or a list of layers from 1; the last layer always has one. `heads` is linear, pooler,
        shared, family or attention (so many `queries` over the tokens, each `query_width` wide); `pooling` first or
        mean; `num_layers` takes only the first so many layers.
        New heads are random: train them before you believe an answer. A classifier keeps its own head
        and its labels at the last exit; `labels` may name them in another order or spelling, other names need
        `fresh_head`, which leaves that head out.
        """
        asked = ExitOptions(
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
        )
        options = _with_dtype(options)
        attached = attach(str(checkpoint), asked, **options)
        model = cls(attached.config)
        absent, unknown = model.load_state_dict(attached.weights, strict=False)
        lost = [key for key in absent if key.startswith("backbone.")]
        if lost or unknown:
            raise BadModel(f"{checkpoint}: weights without a place: {', '.join([*lost, *unknown][:5])}.")
        model.to(attached.config.backbone.dtype)
        model.config._name_or_path = model.name_or_path = str(checkpoint)
        model._hub_options = {key: options[key] for key in HUB_OPTIONS if key in options}
        model.config.choose(policy)
        return model.eval()

    @classmethod
    def from_pretrained(cls, name: Any, *args: Any, **options: Any) -> Any:
        """Load a model folder (or a name on the Hub); every weight has to be there, and none too many.

        Float32 unless `dtype` or a `device_map` is given, whatever the file holds: half precision is
        slow on a CPU.
        """
        wants_report = options.pop("output_loading_info", False)
        options = _with_dtype(options)
        hub_options = {key: options[key] for key in HUB_OPTIONS if key in options}
        with loading(name):
            if "config" not in options:
                check_kind(name, hub_options)
            options["ignore_mismatched_sizes"] = True  # we name them ourselves
            model, report = super().from_pretrained(name, *args, output_loading_info=True, **options)
        wrong = [
            f"{key} is {tuple(there)} instead of {tuple(expected)}"
            for key, there, expected in sorted(report["mismatched_keys"])
        ]
        wrong += [f"{key} is missing" for key in sorted(report["missing_keys"])]
        wrong += [f"{key} is not ours" for key in sorted(report["unexpected_keys"])]
        if wrong:
            rest = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise BadModel(f"{name} does not hold the model of its config: {', '.join(wrong[:5])}{rest}.")
        model._hub_options = hub_options
        model._drop_stale_guarantee(str(name))
        return (model, report) if wants_report else model

    def save_pretrained(self, save_directory: Any, *args: Any, **options: Any) -> None:
        """Write an ordinary model folder: config, weights, tokenizer, and a model card if there is none.

        What was promised of the model goes along, with its evidence, only if this still is that model.
        """
        self._drop_stale_guarantee("The model")
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
        write_together(card.new_card(self.config, folder))

    def _drop_stale_guarantee(self, name: str) -> None:
        if not self.config.calibrated:
            return
        try:
            now = self.runner().fingerprint
        except BadModel:  # without its tokenizer it is not what was tested
            now = ""
        guarantee.drop_if_stale(self.config, name, now, "torch", self.stepper.dtype)

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
        """Upload the model folder, our card and the tokenizer with it; returns the commit's address."""
        api = HfApi(token=token)
        repo = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return str(
                api.upload_folder(
                    repo_id=repo,
                    folder_path=folder,
                    revision=revision,
                    commit_message=commit_message,
                    create_pr=create_pr,
                )
            )

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that lies beside the weights, loaded when first needed; may be set."""
        if self._tokenizer is None:
            if not self.name_or_path:
                raise BadModel("This model was not loaded from a folder: set model.tokenizer before it reads texts.")
            self._tokenizer = load_tokenizer(str(self.name_or_path), self.config, self._hub_options)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def resize_token_embeddings(self, *args: Any, **options: Any) -> nn.Module:
        """Another vocabulary size; the backbone's config hears of it too."""
        embeddings: nn.Embedding = super().resize_token_embeddings(*args, **options)
        self.config.backbone.vocab_size = embeddings.num_embeddings
        return embeddings

    # -- how models answer -----------------------------------------------------------------------

    @property
    def stepper(self) -> TorchStepper:
        """The backbone and its exits as the loop sees them."""
        config: AdaptiveConfig = self.config
        equilibrium = self.training and self.gradient_equilibrium
        width = None if self.gates is None or self.gates_are_open else GatedLayers(self.gates)
        parts = (config.family, self.backbone, self.exits, config.answer_type)
        return TorchStepper(*parts, equilibrium, width, bool(config.faithful))

    def add_gates(self, width: dict[str, Any]) -> None:
        """Give every layer fresh gates; about half of what they prune is pruned until they are trained."""
        if self.gates is not None:
            raise BadValue(f"{self.name_or_path or 'The model'} has gates already; start from a model without.")
        if not self.config.family.has_gates:
            raise BadValue(
                f"Gates do not fit the layers of {self.config.family.name}; they fit {', '.join(gated_families())}."
            )
        asked = width_of(width)
        assert asked is not None
        asked.check(self.config.num_heads, self.config.num_channels)
        self.config.width = asked.to_dict()
        self.gates = gates_of(self.config)
        assert self.gates is not None
        for module in self.gates.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=self.config.initializer_range)
                nn.init.zeros_(module.bias)
        self.gates.to(self.device)

    def runner(self, max_length: int | None = None) -> Runner:
        """The model with its tokenizer, as everything above the loop takes it."""
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
        """Answer a batch; rows leave early in evaluation mode, by the config's policy unless one is given.

        In training mode, with labels or with `output_exits`, every exit answers for every row. The loss
        is the plain sum of the exits' losses. In evaluation mode `logits` are the policy's choice all
        the same.

        Spans: `labels` are (rows, 2), or `start_positions` and `end_positions`; `marks` (rows, tokens) say where an
        answer may end (1) and where it may also start (3), everywhere without them.
        """
        batch = Batch.of_tensors(input_ids, attention_mask, token_type_ids, marks)
        if start_positions is not None and end_positions is not None:
            labels = torch.stack([start_positions.view(-1), end_positions.view(-1)], dim=1)
        stepper = self.stepper
        chosen = None if self.training else self.config.choose(policy, threshold)
        if chosen is not None and labels is None and not output_exits:
            answered = run(stepper, batch, chosen, max_layers)
            more = self.config.answer_type.model_outputs(answered.tokens, input_ids.shape[1])
            return AdaptiveOutput(logits=answered.logits, exit_layer=answered.layer, **more)
        every = every_exit(stepper, batch)
        loss = None
        if labels is not None:
            losses = [said.answer_type.loss(said.raw, labels) for said in self.trained_exits(every)]
            loss = torch.stack(losses).sum()
        answered = run(Replay(every), batch, policies.Never() if chosen is None else chosen, max_layers)
        uncertainty = [said.uncertainty for said in every if said.uncertainty is not None]
        return AdaptiveOutput(
            loss=loss,
            logits=answered.logits,
            **self.config.answer_type.model_outputs(answered.tokens, input_ids.shape[1]),
            exit_layer=answered.layer,
            exit_logits=torch.stack([said.logits for said in every], dim=1),
            exit_uncertainty=torch.stack(uncertainty, dim=1) if uncertainty else None,
            exits=every if self.training else None,
        )

    def trained_exits(self, every: tuple[ExitOutput, ...]) -> list[ExitOutput]:
        """The exits that a loss is for: all but a faithful model's last ramp, which no original trains."""
        ramps = len(every) - len(self.config.exit_specs)
        return [said for said in every if not (ramps and said.exit == len(every) - 1)]

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
        """Answers to texts or pairs, in their order; `texts` may be an endless iterator.

        Texts are read in chunks, sorted by length, and batched by a budget of tokens, so memory stays bounded however
        many there are. A chunk (4,096 texts, or `chunk`) is read before its first answer: with `chunk=1` a live queue
        gets each answer before it is asked for the next text. Mistakes in the options raise here.
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

    def answer(self, *example: str, **options: Any) -> Any:
        """The answer to one example: a text, a pair, a question and its context; options are those of `predict`."""
        (found,) = self.runner().predict([example[0] if len(example) == 1 else example], **options)
        return found


def gates_of(config: AdaptiveConfig) -> Gates | None:
    """The gates that a config asks for."""
    if config.gating is None:
        return None
    eps = float(getattr(config.backbone, "layer_norm_eps", 1e-12))
    sizes = (config.num_layers, config.hidden_size, config.num_heads, config.num_channels)
    return Gates(config.gating, *sizes, eps, config.faithful)


def _with_dtype(options: dict[str, Any]) -> dict[str, Any]:
    """Float32 where nobody asked for a type and the library does not place the model itself."""
    options = dict(options)
    dtype = options.pop("torch_dtype", None) or options.pop("dtype", None)
    if dtype in (None, "auto") and options.get("device_map") is None:
        dtype = torch.float32
    return options if dtype is None else options | {"dtype": dtype}


def check_kind(name: Any, hub_options: dict[str, Any]) -> None:
    """Refuse a model that is not ours before its config is forced into ours."""
    config, _ = AdaptiveConfig.get_config_dict(name, **hub_options)
    if not config:
        raise OSError("it has no config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise BadModel(f'{name}: config.json says as `model_type` {kind!r:.60}; a model of ours says "offramp".')
    if kind != "offramp":
        raise BadModel(f"{name} is a plain {kind} model; put exits on it with AdaptiveModel.from_backbone.")


AutoModel.register(AdaptiveConfig, AdaptiveModel, exist_ok=True)
AutoModelForSequenceClassification.register(AdaptiveConfig, AdaptiveModel, exist_ok=True)
AutoModelForQuestionAnswering.register(AdaptiveConfig, AdaptiveModel, exist_ok=True)
