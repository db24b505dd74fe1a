"""What a model folder's config.json says: the backbone's own config, the exits, the labels, the policy."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from offramp import policies
from offramp.backbones import FAMILIES, Family
from offramp.errors import BadModel, BadValue, UnknownName
from offramp.stepper import Problem

__all__ = ["HEADS", "POOLINGS", "RAMPS", "AdaptiveConfig", "ExitSpec", "exit_layers", "family_of"]

HEADS = {
    "linear": "a linear classifier on what it reads",
    "pooler": "a dense tanh layer of its own before the classifier",
    "shared": "a classifier of its own behind one dense tanh layer that all exits share",
    "family": "the head that the family's own classifier has",
}
RAMPS = {
    "answers": "DeeBERT, RomeBERT: never trained, yet with `faithful` it may answer before the classifier",
    "judges": "BERxiT: its pooler is what LTE reads on the last layer",
}
PROBLEMS = [problem.value for problem in Problem]
POOLINGS = {"first": "the first token", "mean": "the mean over real tokens"}


@dataclass(frozen=True)
class ExitSpec:
    """One exit: the layer that it sits on (from 1), the style of its head, what the head reads.

    Its logits are divided by the temperature, which calibrate may fit: above 1 it is less sure of itself.
    """

    layer: int
    head: str = "linear"
    pooling: str = "mean"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise BadModel(f"The exit on layer {self.layer} has the temperature {self.temperature}; it is above 0.")
        if self.head not in HEADS:
            raise UnknownName("head", self.head, HEADS)
        if self.pooling not in POOLINGS:
            raise UnknownName("pooling", self.pooling, POOLINGS)


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
    calibrated: dict[str, Any] | None = None  # what `calibrate` promises of the policy; the evidence lies beside it
    faithful: bool = False  # do as the original did where nobody should want it: that ramp, no refusals

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        family_of(self.backbone)
        depth = self.num_layers
        if self.exits is None:
            self.exits = [asdict(ExitSpec(layer)) for layer in range(1, depth + 1)]
        specs = [spec if isinstance(spec, ExitSpec) else ExitSpec(**spec) for spec in self.exits]
        if exit_layers([spec.layer for spec in specs], depth)[-1] != specs[-1].layer:
            raise BadModel(f"The last exit is the full model: the config lacks an exit on layer {depth}.")
        self.exits = [asdict(spec) for spec in specs]
        if self.ramp is not None and self.ramp not in RAMPS:
            raise UnknownName("ramp", self.ramp, RAMPS)
        self.policy = policies.parse("never" if self.policy is None else self.policy).to_dict()
        if getattr(self, "problem_type", None) is None:
            self.problem_type: str | None = "regression" if self.num_labels == 1 else "single_label_classification"
        if self.problem_type not in PROBLEMS:
            raise UnknownName("problem type", str(self.problem_type), PROBLEMS)
        self.initializer_range = getattr(self.backbone, "initializer_range", 0.02)

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
    def exit_specs(self) -> tuple[ExitSpec, ...]:
        """The exits from shallow to deep."""
        return tuple(ExitSpec(**spec) for spec in self.exits or ())

    @property
    def problem(self) -> Problem:
        """The kind of answer."""
        return Problem(self.problem_type)

    @property
    def exit_policy(self) -> policies.Policy:
        """The policy that answers when a call names none."""
        return policies.parse(self.policy or "never")

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes' names in the order of the logits."""
        names = self.id2label or {}
        return tuple(str(names[index]) for index in range(self.num_labels))


def exit_layers(wanted: str | Iterable[int], depth: int) -> tuple[int, ...]:
    """The layers that get an exit: `"all"`, or a list, to which the last layer is added where it lacks."""
    if isinstance(wanted, str):
        if wanted != "all":
            raise BadValue(f"exits is {wanted!r}; say 'all' or list layers from 1 to {depth}.")
        return tuple(range(1, depth + 1))
    if not isinstance(wanted, Iterable):
        raise BadValue(f"exits is {wanted!r}; say 'all' or list layers from 1 to {depth}.")
    layers = list(wanted)
    _check_layers(layers, depth)
    layers = [int(layer) for layer in layers]
    return tuple(layers) if layers[-1] == depth else (*layers, depth)


def _check_layers(layers: Sequence[Any], depth: int) -> None:
    written = ", ".join(str(layer) for layer in layers)
    if not layers:
        raise BadValue(f"The list of exits is empty; say 'all' or list layers from 1 to {depth}.")
    if any(isinstance(layer, bool) or not isinstance(layer, numbers.Integral) for layer in layers):
        raise BadValue(f"Exits sit on layers, whole numbers from 1 to {depth}; got {written}.")
    if beyond := [layer for layer in layers if not 1 <= layer <= depth]:
        raise BadValue(f"No layer {beyond[0]}: the backbone has layers 1 to {depth}; exits were {written}.")
    if sorted(set(layers)) != list(layers):
        raise BadValue(f"Exits go from shallow to deep, each once; got {written}.")


def family_of(config: PreTrainedConfig) -> Family:
    """The family of a backbone's config, or a refusal that lists the known ones."""
    if config.model_type not in FAMILIES:
        raise UnknownName("backbone family", str(config.model_type), FAMILIES)
    if config.num_hidden_layers < 1:
        raise BadModel("The backbone has no layers.")
    return FAMILIES[config.model_type]


AutoConfig.register("offramp", AdaptiveConfig, exist_ok=True)
