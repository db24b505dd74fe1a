"""The config.json of a model folder: the backbone's config, the exits, the labels and the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.configuration_utils import SubConfigSpec

from offramp import policies
from offramp.answers import ANSWER_TYPES, AnswerType, default_answer_type
from offramp.answers.answer import Decoding
from offramp.core.stepper import ExitPoint, ModelSpec, exit_points_on
from offramp.encoders import FAMILIES, Family
from offramp.errors import BadModel, UnknownName
from offramp.files.load_errors import reading
from offramp.model.card_facts import CardFacts
from offramp.model.exit_spec import ExitSpec, exit_layers, is_number
from offramp.model.renamed import current_calibration
from offramp.model.saved_config import check_adapted_for, check_calibrated, check_exits, check_saved
from offramp.originals.width.spec import Width, parse_width
from offramp.policies import Policy
from offramp.policies.thresholds import Threshold

__all__ = ["RAMPS", "AdaptiveConfig", "family_of", "gated_families"]

RAMPS = {  # extra heads on the last layer of converted checkpoints
    "answers": "DeeBERT, RomeBERT: untrained; with `faithful` an exit before the last one",
    "judges": "BERxiT: its pooler is the input of the learning-to-exit module on the last layer",
}
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation", "classifier_activation")


class AdaptiveConfig(PreTrainedConfig):
    """The config of an `AdaptiveModel`; its `model_type` is "offramp"."""

    model_type = "offramp"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["exit_layer", "exit_logits", "exit_uncertainty"]
    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        "backbone": SubConfigSpec(AutoConfig, model_type="bert")
    }

    backbone: Any = None  # the encoder's config, or its dict
    exits: list[Any] | None = None  # a {"layer", "head", "pooling"} per exit; default: every layer
    policy: Any = None  # a dict with the policy's name and parameters, or a string such as entropy:0.2; default: never
    lte: bool = False  # has BERxiT's learning-to-exit module, shared by all exits
    ramp: str | None = None  # a converted checkpoint's extra head on the last layer, see RAMPS
    notes: str | None = None  # Markdown for the model card
    card: Any = None  # base model, datasets and scores for the metadata of the model card; see CardFacts
    max_tokens: int | None = None  # maximum length in tokens; None: the limit of the tokenizer and the backbone
    inputs: list[str] | None = None  # columns of the training data: one, or two for pairs of texts
    no_answer: float | None = None  # question answering: minimum score margin of "no answer"; null: always answer
    answer_options: Any = None  # options of the answer type, such as the activation of a ranking's scores
    width: Any = None  # options of EBERT's gates, which prune heads and channels; null: no gates
    adapted_for: Any = None  # {"backend", "threads"}: what `offramp.load` uses by default; null: torch
    calibrated: Any = None  # the guarantee and the fingerprint of the tested model; see calibration.json
    faithful: bool = False  # reproduce quirks of the original implementation: use the ramp, skip checks

    def __getattribute__(self, key: str) -> Any:
        """Look up an attribute without transformers' aliases and values per layer, which only the backbone may have.

        Theirs takes ten times as long, and one prediction reads dozens of attributes.
        """
        return object.__getattribute__(self, key)

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._check_fields()
        depth = self.num_layers
        if self.exits is None:
            self.exits = [ExitSpec(layer).to_dict() for layer in range(1, depth + 1)]
        specs = [ExitSpec.from_config(spec) for spec in self.exits]
        if exit_layers([spec.layer for spec in specs], depth)[-1] != specs[-1].layer:
            raise BadModel(f"`exits` must include the last layer, {depth}, which is the full model.")
        self.exits = [spec.to_dict() for spec in specs]
        self.policy = policies.parse("never" if self.policy is None else self.policy).to_dict()
        width = parse_width(self.width)
        if width is not None:
            if not self.family.has_gates:
                raise BadModel(
                    f"`width`: gates are not supported for {self.family.name}, only for {', '.join(gated_families())}."
                )
            width.check(self.num_heads, self.num_channels)
        self.width = None if width is None else width.to_dict()
        if getattr(self, "problem_type", None) is None:
            self.problem_type: str | None = default_answer_type(self.num_labels).name
        self._check_heads(specs)
        options = self.answer_type.check_options(self.answer_options, self.num_labels)
        self.answer_options = None if options is None else dict(options)
        if self.answer_type.inputs is not None and self.inputs is None:
            self.inputs = list(self.answer_type.inputs)
        self.initializer_range = getattr(self.backbone, "initializer_range", 0.02)

    def _check_heads(self, specs: Sequence[ExitSpec]) -> None:
        """Raise `BadModel` if a head does not fit the answer type or the learning-to-exit module."""
        self.answer_type.check_config(self.num_labels, self.ramp)
        for spec in specs:
            if (spec.pooling == "tokens") is not self.answer_type.per_token:
                need = "needs pooling 'tokens'" if self.answer_type.per_token else "does not support it"
                raise BadModel(
                    f"The exit on layer {spec.layer} has pooling {spec.pooling!r}, but {self.answer_type.title} {need}."
                )
        if self.lte and any(spec.head == "attention" for spec in specs):
            raise BadModel("The learning-to-exit module (`lte`) does not support attention heads.")

    def _check_fields(self) -> None:
        """Raise if a field has an invalid value."""
        family_of(self.backbone)
        for name in ("lte", "faithful"):
            if not isinstance(getattr(self, name), bool):
                raise BadModel(f"`{name}` must be true or false, got {getattr(self, name)!r:.60}.")
        if self.ramp is not None and (not isinstance(self.ramp, str) or self.ramp not in RAMPS):
            raise UnknownName("ramp", str(self.ramp), RAMPS)
        if self.no_answer is not None and (not is_number(self.no_answer) or not isfinite(self.no_answer)):
            raise BadModel(f"`no_answer` must be a finite number or null, got {self.no_answer!r:.60}.")
        if self.notes is not None and not isinstance(self.notes, str):
            raise BadModel(f"`notes` must be text, got {self.notes!r:.60}.")
        CardFacts.from_config(self.card)
        if self.exits is not None and (not isinstance(self.exits, list) or not self.exits):
            raise BadModel(f"`exits` must be a non-empty list, got {self.exits!r:.60}.")
        inputs = self.inputs
        if inputs is not None and (
            not isinstance(inputs, list)
            or len(inputs) not in (1, 2)
            or not all(isinstance(name, str) for name in inputs)
        ):
            raise BadModel(f"`inputs` must list one or two column names or be null, got {inputs!r:.60}.")
        length = self.max_tokens
        if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
            raise BadModel(f"`max_tokens` must be a positive integer or null, got {length!r:.60}.")
        maximum = self.family.max_length(self.backbone)
        if maximum < (length or 1):
            raise BadModel(f"`max_tokens` must be at most {maximum} (the backbone's positions), got {length!s:.20}.")
        names = self.id2label or {}
        if not isinstance(names, Mapping) or [*names] != [*range(len(names))]:
            raise BadModel(f"`id2label` must map 0, 1, … in order to labels, got {names!r:.80}.")
        for field in ACTIVATIONS:
            function = getattr(self.backbone, field, None)
            if isinstance(function, str) and function not in ACT2FN:
                raise BadModel(f"`backbone.{field}` must be an activation of transformers, got {function!r:.60}.")
        check_adapted_for(self.adapted_for)
        if self.calibrated is not None:
            self.calibrated = current_calibration(self.calibrated)
            check_calibrated(self.calibrated)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Do nothing: with `trust_remote_code=True`, transformers would copy offramp's code into saved folders."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Load a config from the contents of config.json; required keys have no defaults."""
        is_offramp = config_dict.get("model_type") == cls.model_type
        if is_offramp:
            check_saved(config_dict)
        with reading("config.json"):
            config = super().from_dict(config_dict, **kwargs)
        if is_offramp:
            check_exits(config_dict["exits"])
        return config

    @property
    def family(self) -> Family:
        """The encoder family of the backbone."""
        return FAMILIES[self.backbone.model_type]

    @property
    def num_layers(self) -> int:
        """The number of layers of the backbone."""
        return int(self.backbone.num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        """The hidden size of the backbone."""
        return int(self.backbone.hidden_size)

    @property
    def num_heads(self) -> int:
        """The number of attention heads per layer."""
        return int(self.backbone.num_attention_heads)

    @property
    def num_channels(self) -> int:
        """The intermediate size of the feed-forward layers."""
        return int(getattr(self.backbone, "intermediate_size", None) or self.backbone.hidden_dim)

    @property
    def gating(self) -> Width | None:
        """The options of the gates; None without gates."""
        return parse_width(self.width)

    @property
    def exit_specs(self) -> tuple[ExitSpec, ...]:
        """The exits from shallow to deep."""
        return tuple(ExitSpec(**spec) for spec in self.exits or ())

    @property
    def exit_points(self) -> tuple[ExitPoint, ...]:
        """The exits as the early-exit loop sees them, including the ramp of a faithful model."""
        layers = [int(spec["layer"]) for spec in self.exits or ()]
        if self.ramp_answers:  # as in the original implementation, although the ramp is untrained
            layers.append(layers[-1])
        return exit_points_on(layers)

    @property
    def ramp_answers(self) -> bool:
        """Whether the extra head on the last layer is used as an exit."""
        return bool(self.faithful) and self.ramp == "answers"

    @property
    def answer_type(self) -> AnswerType:
        """The answer type."""
        return ANSWER_TYPES[str(self.problem_type)]

    @property
    def decoding(self) -> Decoding:
        """How to decode outputs into predictions."""
        return Decoding(self.labels, self.no_answer, self.answer_options, self.num_layers)

    @property
    def reads_pairs(self) -> bool | None:
        """Whether the model was trained on pairs of texts; None: unknown."""
        return None if self.inputs is None else len(self.inputs) == 2

    @property
    def model_spec(self) -> ModelSpec:
        """The properties of the model that policies depend on."""
        policy = self.exit_policy
        facts = (self.answer_type, self.num_labels, self.exit_points, self.lte, self.faithful)
        return policy.fitted_spec(ModelSpec(*facts, options=self.answer_options))

    def resolve_policy(self, policy: str | Policy | None = None, threshold: Threshold | None = None) -> Policy:
        """Return the policy of a call (default: the model's), with `threshold` if given; raise if it does not fit."""
        if isinstance(policy, str) and ":" not in policy and threshold is not None:  # --policy entropy --threshold 0.3
            policy = policies.from_dict({"name": policy.strip(), "threshold": threshold})
        exit_policy = self.exit_policy if policy is None else policies.parse(policy)
        if threshold is not None:
            exit_policy = exit_policy.with_threshold(threshold)
        exit_policy = exit_policy.fitted_like(self.exit_policy)  # risk:0.02 uses the model's own risk model
        exit_policy.check(self.model_spec)
        return exit_policy

    @property
    def exit_policy(self) -> policies.Policy:
        """The model's exit policy."""
        return policies.parse(self.policy or "never")

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in the order of the logits."""
        names = self.id2label or {}
        return tuple(str(names[index]) for index in range(self.num_labels))


def gated_families() -> list[str]:
    """Return the families that support gates."""
    return [name for name, family in FAMILIES.items() if family.has_gates]


def family_of(config: PreTrainedConfig) -> Family:
    """Return the encoder family of a backbone's config; raise if it is not supported."""
    if not isinstance(config, PreTrainedConfig):
        raise BadModel(f"`backbone` must be the config of an encoder, got {config!r:.60}.")
    if config.model_type not in FAMILIES:
        raise UnknownName("backbone family", str(config.model_type), FAMILIES)
    if config.num_hidden_layers < 1:
        raise BadModel("The backbone has no layers.")
    return FAMILIES[config.model_type]


AutoConfig.register("offramp", AdaptiveConfig, exist_ok=True)
