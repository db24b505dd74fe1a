"""What a model folder's config.json says: the backbone's own config, the exits, the labels, the policy."""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.configuration_utils import SubConfigSpec

from offramp import policies
from offramp.answers import ANSWER_TYPES, AnswerType, usual_type
from offramp.answers.answer import Decoding
from offramp.core.stepper import ExitPoint, ModelSpec, points_on
from offramp.encoders import FAMILIES, Family
from offramp.errors import BadModel, BadValue, UnknownName
from offramp.files.faults import reading
from offramp.model.renamed import current_calibration
from offramp.originals.width.spec import Width, width_of
from offramp.policies import Policy, RiskModel
from offramp.policies.thresholds import Threshold

__all__ = ["HEADS", "POOLINGS", "RAMPS", "AdaptiveConfig", "ExitSpec", "exit_layers", "family_of"]

HEADS = {
    "linear": "a linear classifier on what it reads",
    "pooler": "a dense tanh layer of its own before the classifier",
    "shared": "a classifier of its own behind one dense tanh layer that all exits share",
    "family": "the head that the family's own classifier has",
    "attention": "learned queries over the tokens, then a linear classifier",
}
RAMPS = {
    "answers": "DeeBERT, RomeBERT: never trained, yet with `faithful` it may answer before the classifier",
    "judges": "BERxiT: its pooler is what LTE reads on the last layer",
}
NEEDED = {  # in a config.json, where what is missing would silently become something else
    "backbone": "the encoder's own config",
    "exits": "the list of exits",
    "problem_type": "the kind of answer",
}
SIZES = re.compile(r"size$|^num_|^n_|dim$|^max_position|^inner_group")  # whole numbers of a backbone's config
LEAST_1: tuple[str, ...] = (
    "hidden_size",
    "dim",
    "vocab_size",
    "intermediate_size",
    "hidden_dim",
    "embedding_size",
    "inner_group_num",
)
LEAST_1 += ("num_attention_heads", "n_heads", "max_position_embeddings", "num_hidden_groups")
LARGEST = 10_000_000  # of any of them
HOTTEST = 1_000_000  # a temperature that leaves nothing of an answer
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation", "classifier_activation")
POOLINGS = {
    "first": "the first token",
    "mean": "the mean over real tokens",
    "queries": "what its queries find, for attention",
    "tokens": "every token, for answers at tokens",
}
QUERIES, QUERY_WIDTH = 4, 64  # of a head that reads with attention; more of either did not pay
MOST_QUERIES = 4096


@dataclass(frozen=True)
class ExitSpec:
    """One exit: the layer that it sits on (0: on the embeddings), the style of its head, what the head reads.

    Its logits are divided by the temperature, which calibrate may fit: above 1 it is less sure of itself.
    """

    layer: int
    head: str = "linear"
    pooling: str = "mean"
    temperature: float = 1.0
    queries: int = QUERIES  # of attention alone
    width: int = QUERY_WIDTH  # numbers that each of them reads

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or not 0 < self.temperature <= HOTTEST:
            raise BadModel(
                f"The exit on layer {self.layer!s:.20} has the temperature {self.temperature!r:.60}; it is above 0 and "
                f"at most {HOTTEST:,}."
            )
        if not isinstance(self.head, str) or self.head not in HEADS:
            raise UnknownName("head", str(self.head), HEADS)
        if not isinstance(self.pooling, str) or self.pooling not in POOLINGS:
            raise UnknownName("pooling", str(self.pooling), POOLINGS)
        if (self.head == "attention") is not (self.pooling == "queries"):
            raise BadModel(
                f"The exit on layer {self.layer!s:.20} has the head {self.head} on {self.pooling}; "
                "attention reads with queries, and nothing else does."
            )
        for name in ("queries", "width"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_QUERIES:
                raise BadModel(
                    f"The exit on layer {self.layer!s:.20}: `{name}` is {count!r:.60}; it is a whole number "
                    f"from 1 to {MOST_QUERIES:,}."
                )

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a config: what only attention has, only there."""
        return {
            name: value
            for name, value in asdict(self).items()
            if self.head == "attention" or name not in ("queries", "width")
        }

    @classmethod
    def of(cls, saved: Any) -> ExitSpec:
        """An exit as it stands in a config."""
        if isinstance(saved, cls):
            return saved
        known = [one.name for one in fields(cls)]
        if not isinstance(saved, Mapping) or "layer" not in saved or not set(saved) <= set(known):
            raise BadModel(f"An exit in `exits` is {saved!r:.80}; it has a layer, and may have {', '.join(known[1:])}.")
        return cls(**saved)


class AdaptiveConfig(PreTrainedConfig):
    """`model_type: "offramp"`; everything that a model folder needs to be loaded without guessing."""

    model_type = "offramp"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["exit_layer", "exit_logits", "exit_uncertainty"]
    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        "backbone": SubConfigSpec(AutoConfig, model_type="bert")
    }

    backbone: Any = None  # the encoder's own config (or its dict, which becomes one)
    exits: list[Any] | None = None  # one {"layer", "head", "pooling"} per exit; default: every layer
    policy: Any = None  # name and numbers (or as it is written, entropy:0.2); default: never
    lte: bool = False  # BERxiT's learning-to-exit module, shared by the exits
    ramp: str | None = None  # a converted checkpoint's extra head on the last layer, see RAMPS
    notes: str | None = None  # what the card says beyond the config
    max_tokens: int | None = None  # the maximum length of a text; None: what tokenizer and backbone allow
    inputs: list[str] | None = None  # the columns that it was trained on: of a text, or of a text and its partner
    no_answer: float | None = None  # of spans: by how much "no answer" must score higher; null: contexts have one
    width: Any = None  # EBERT's gates on every layer: how they decide and what they are to keep; null: none
    calibrated: Any = None  # what `calibrate` promised, and of what (fingerprint); the evidence lies beside it
    faithful: bool = False  # do as the original did where nobody should want it: that ramp, no refusals

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._check_fields()
        depth = self.num_layers
        if self.exits is None:
            self.exits = [ExitSpec(layer).to_dict() for layer in range(1, depth + 1)]
        specs = [ExitSpec.of(spec) for spec in self.exits]
        if exit_layers([spec.layer for spec in specs], depth)[-1] != specs[-1].layer:
            raise BadModel(f"The last exit is the full model: the config lacks an exit on layer {depth}.")
        self.exits = [spec.to_dict() for spec in specs]
        self.policy = policies.parse("never" if self.policy is None else self.policy).to_dict()
        width = width_of(self.width)
        if width is not None:
            if not self.family.has_gates:
                raise BadModel(f"`width`: {self.family.name} has no gates; {', '.join(gated_families())} have.")
            width.check(self.num_heads, self.num_channels)
        self.width = None if width is None else width.to_dict()
        if getattr(self, "problem_type", None) is None:
            self.problem_type: str | None = usual_type(self.num_labels).name
        self._check_reading(specs)
        if self.answer_type.inputs is not None and self.inputs is None:
            self.inputs = list(self.answer_type.inputs)
        self.initializer_range = getattr(self.backbone, "initializer_range", 0.02)

    def _check_reading(self, specs: Sequence[ExitSpec]) -> None:
        """Heads read every token where the answer type has an answer at each, and nowhere else."""
        self.answer_type.check_config(self.num_labels, self.ramp)
        for spec in specs:
            if (spec.pooling == "tokens") is not self.answer_type.per_token:
                reads = "at every token" if self.answer_type.per_token else "once per row"
                raise BadModel(
                    f"The exit on layer {spec.layer} reads {POOLINGS[spec.pooling]}, and the model answers with "
                    f"{self.answer_type.title}, {reads}."
                )
        if self.lte and any(spec.head == "attention" for spec in specs):
            raise BadModel(
                "The learning-to-exit module reads one vector of the encoder; heads with attention have none."
            )

    def _check_fields(self) -> None:
        """Refuse values that nobody wrote on purpose, each by its name."""
        family_of(self.backbone)
        for name in ("lte", "faithful"):
            if not isinstance(getattr(self, name), bool):
                raise BadModel(f"`{name}` is {getattr(self, name)!r:.60}; it is true or false.")
        if self.ramp is not None and (not isinstance(self.ramp, str) or self.ramp not in RAMPS):
            raise UnknownName("ramp", str(self.ramp), RAMPS)
        if self.no_answer is not None and (not _is_number(self.no_answer) or not isfinite(self.no_answer)):
            raise BadModel(f"`no_answer` is {self.no_answer!r:.60}; it is a finite number, or null.")
        if self.notes is not None and not isinstance(self.notes, str):
            raise BadModel(f"`notes` is {self.notes!r:.60}; it is text.")
        if self.exits is not None and (not isinstance(self.exits, list) or not self.exits):
            raise BadModel(f"`exits` is {self.exits!r:.60}; it is a list of exits.")
        inputs = self.inputs
        if inputs is not None and (
            not isinstance(inputs, list)
            or len(inputs) not in (1, 2)
            or not all(isinstance(name, str) for name in inputs)
        ):
            raise BadModel(f"`inputs` is {inputs!r:.60}; it names one column, or two for pairs, or is null.")
        length = self.max_tokens
        if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
            raise BadModel(f"`max_tokens` is {length!r:.60}; it is a whole number above 0, or null.")
        most = self.family.max_length(self.backbone)
        if most < (length or 1):
            raise BadModel(f"`max_tokens` is {length!s:.20}; the backbone has positions for {most} tokens.")
        names = self.id2label or {}
        if not isinstance(names, Mapping) or [*names] != [*range(len(names))]:
            raise BadModel(f"`id2label` is {names!r:.80}; it names the classes 0, 1, … in order.")
        for field in ACTIVATIONS:
            function = getattr(self.backbone, field, None)
            if isinstance(function, str) and function not in ACT2FN:
                raise BadModel(f"`backbone.{field}` is {function!r:.60}; transformers knows no such activation.")
        if self.calibrated is not None:
            self.calibrated = current_calibration(self.calibrated)
            _check_calibrated(self.calibrated)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read what a config.json holds; what it must hold is not guessed."""
        ours = config_dict.get("model_type") == cls.model_type
        if ours:
            _check_saved(config_dict)
        with reading("config.json"):
            made = super().from_dict(config_dict, **kwargs)
        if ours:
            _check_exits(config_dict["exits"])
        return made

    @property
    def family(self) -> Family:
        """How the backbone is stepped."""
        return FAMILIES[self.backbone.model_type]

    @property
    def num_layers(self) -> int:
        """The backbone's depth."""
        return int(self.backbone.num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        """The backbone's width."""
        return int(self.backbone.hidden_size)

    @property
    def num_heads(self) -> int:
        """Attention heads of a layer."""
        return int(self.backbone.num_attention_heads)

    @property
    def num_channels(self) -> int:
        """Channels between the two linear layers of a layer."""
        return int(getattr(self.backbone, "intermediate_size", None) or self.backbone.hidden_dim)

    @property
    def gating(self) -> Width | None:
        """Its gates, where it has some."""
        return width_of(self.width)

    @property
    def exit_specs(self) -> tuple[ExitSpec, ...]:
        """The exits from shallow to deep."""
        return tuple(ExitSpec(**spec) for spec in self.exits or ())

    @property
    def exit_points(self) -> tuple[ExitPoint, ...]:
        """Where rows may leave; a faithful model's ramp is one more on the last layer, before the classifier."""
        layers = [spec.layer for spec in self.exit_specs]
        if self.ramp_answers:  # it may let rows go first, as the originals' never-trained last highway did
            layers.append(layers[-1])
        return points_on(layers)

    @property
    def ramp_answers(self) -> bool:
        """Whether the last layer's extra head is an exit of its own."""
        return bool(self.faithful) and self.ramp == "answers"

    @property
    def answer_type(self) -> AnswerType:
        """The kind of answer."""
        return ANSWER_TYPES[str(self.problem_type)]

    @property
    def decoding(self) -> Decoding:
        """How outputs become answers."""
        return Decoding(self.labels, self.no_answer)

    @property
    def reads_pairs(self) -> bool | None:
        """Whether it was trained on pairs of texts; None where nobody knows."""
        return None if self.inputs is None else len(self.inputs) == 2

    @property
    def model_spec(self) -> ModelSpec:
        """What policies have to know."""
        own = self.exit_policy
        risk_model = (own.offsets, own.slopes) if isinstance(own, RiskModel) and own.is_fitted else None
        return ModelSpec(self.answer_type, self.num_labels, self.exit_points, self.lte, self.faithful, risk_model)

    def choose(self, policy: str | Policy | None = None, threshold: Threshold | None = None) -> Policy:
        """The policy of a call: the one given, or the model's own, perhaps with another threshold; checked."""
        if isinstance(policy, str) and ":" not in policy and threshold is not None:  # --policy entropy --threshold 0.3
            policy = policies.from_dict({"name": policy.strip(), "threshold": threshold})
        chosen = self.exit_policy if policy is None else policies.parse(policy)
        if threshold is not None:
            chosen = chosen.with_threshold(threshold)
        if isinstance(chosen, RiskModel):  # risk:0.02 alone: by the judge that was fitted to this model
            chosen = chosen.fitted_like(self.exit_policy)
        chosen.check(self.model_spec)
        return chosen

    @property
    def exit_policy(self) -> policies.Policy:
        """The policy that answers when a call names none."""
        return policies.parse(self.policy or "never")

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes' names in the order of the logits."""
        names = self.id2label or {}
        return tuple(str(names[index]) for index in range(self.num_labels))


def exit_layers(asked: str | Iterable[int], depth: int) -> tuple[int, ...]:
    """The layers that get an exit: `"all"`, or a list, to which the last layer is added where it lacks.

    A list may begin with 0, an exit on the embeddings, before any layer has run; `"all"` does not include it.
    """
    if isinstance(asked, str):
        if asked != "all":
            raise BadValue(f"exits is {asked!r}; say 'all' or list layers from 1 to {depth}.")
        return tuple(range(1, depth + 1))
    if not isinstance(asked, Iterable):
        raise BadValue(f"exits is {asked!r}; say 'all' or list layers from 1 to {depth}.")
    layers = list(asked)
    _check_layers(layers, depth)
    layers = [int(layer) for layer in layers]
    return tuple(layers) if layers[-1] == depth else (*layers, depth)


def _check_layers(layers: Sequence[Any], depth: int) -> None:
    written = ", ".join(str(layer) for layer in layers)
    if not layers:
        raise BadValue(f"The list of exits is empty; say 'all' or list layers from 1 to {depth}.")
    if any(isinstance(layer, bool) or not isinstance(layer, numbers.Integral) for layer in layers):
        raise BadValue(f"Exits sit on layers, whole numbers from 1 to {depth}; got {written}.")
    if beyond := [layer for layer in layers if not 0 <= layer <= depth]:
        raise BadValue(f"No layer {beyond[0]}: the backbone has layers 1 to {depth}; exits were {written}.")
    if sorted(set(layers)) != list(layers):
        raise BadValue(f"Exits go from shallow to deep, each once; got {written}.")


def gated_families() -> list[str]:
    """The families whose layers can have gates."""
    return [name for name, family in FAMILIES.items() if family.has_gates]


def family_of(config: PreTrainedConfig) -> Family:
    """The family of a backbone's config, or a refusal that lists the known ones."""
    if not isinstance(config, PreTrainedConfig):
        raise BadModel(f"`backbone` is {config!r:.60}; it is the encoder's own config.")
    if config.model_type not in FAMILIES:
        raise UnknownName("backbone family", str(config.model_type), FAMILIES)
    if config.num_hidden_layers < 1:
        raise BadModel("The backbone has no layers.")
    return FAMILIES[config.model_type]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_saved(saved: Mapping[str, Any]) -> None:
    """What a config.json must say itself: for each of these another value would mean another model."""
    for name, what in NEEDED.items():
        if not saved.get(name):
            raise BadModel(f"config.json lacks `{name}`, {what}.")
    backbone, names = saved["backbone"], saved.get("id2label", {})
    if isinstance(backbone, Mapping):
        _check_backbone(backbone)
    if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names.values()):
        raise BadModel(f"config.json: `id2label` is {names!r:.80}; it names the classes.")
    if not names and saved.get("label2id"):
        raise BadModel("config.json lacks `id2label`, the names of the classes, but has `label2id`.")


def _check_exits(saved: Iterable[Any]) -> None:
    """That each says what its head is and reads: weights do not tell the mean from the first token."""
    for number, one in enumerate(saved):
        if missing := {"head", "pooling"} - set(one):
            raise BadModel(f"config.json: `exits[{number}]` lacks `{min(missing)}`; it is {dict(one)!r:.80}.")


def _check_backbone(saved: Mapping[str, Any]) -> None:
    """Its family, and sizes that can be, before the library makes anything so large."""
    kind = saved.get("model_type")
    if not isinstance(kind, str):
        raise BadModel(f"config.json: `backbone.model_type` is {kind!r:.60}; it is the encoder's family.")
    if kind not in FAMILIES:
        raise BadModel(f"config.json: {UnknownName('backbone family', kind, FAMILIES)}")
    for name, value in saved.items():
        if "dropout" in name and _is_number(value) and not 0 <= value <= 1:
            raise BadModel(f"config.json: `backbone.{name}` is {value!s:.20}; it is from 0 to 1.")
        if not isinstance(value, int) or isinstance(value, bool) or not SIZES.search(name):
            continue
        least = 1 if name in LEAST_1 else 0
        if not least <= value <= LARGEST:
            raise BadModel(f"config.json: `backbone.{name}` is {value!s:.20}; it is from {least} to {LARGEST:,}.")
    if not isinstance(saved.get("dtype"), str | None):
        raise BadModel(f"config.json: `backbone.dtype` is {saved['dtype']!r:.60}; it is a name such as float32.")


def _check_calibrated(calibrated: Any) -> None:
    """What a guarantee must say to be repeated: of what, in which words."""
    texts = ("sentence", "policy", "fingerprint", "backend", "dtype")
    if not isinstance(calibrated, Mapping) or not all(isinstance(calibrated.get(name, ""), str) for name in texts):
        raise BadModel(f"`calibrated` is {calibrated!r:.60}; it has {', '.join(texts)}. Calibrate again, or remove it.")
    if not calibrated.get("sentence"):
        raise BadModel("`calibrated` lacks its `sentence`, what was promised. Calibrate again, or remove it.")
    if not isinstance(calibrated.get("guarantee"), Mapping | None):
        raise BadModel(f"`calibrated` guarantees {calibrated['guarantee']!r:.60}. Calibrate again, or remove it.")


AutoConfig.register("offramp", AdaptiveConfig, exist_ok=True)
