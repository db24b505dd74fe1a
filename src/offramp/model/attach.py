"""Add exits to a checkpoint: an encoder of a supported family, or a classifier that was fine-tuned from one."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedConfig

from offramp import policies
from offramp.answers import ANSWER_TYPES, AnswerType, answer_type_of_architectures
from offramp.encoders import Family, HeadModules
from offramp.errors import BadModel, BadValue, UnknownName
from offramp.files.load_errors import loading
from offramp.model.config import AdaptiveConfig, family_of
from offramp.model.exit_spec import (
    CONVOLUTION_LAYERS,
    HEADS,
    INTERACTION_LAYERS,
    POOLINGS,
    QUERIES,
    QUERY_WIDTH,
    ExitSpec,
    exit_layers,
)

__all__ = ["HUB_OPTIONS", "AttachResult", "ExitOptions", "add_exits", "attach"]

logger = logging.getLogger("offramp")

HUB_OPTIONS = ("revision", "cache_dir", "token", "subfolder", "local_files_only", "force_download")


@dataclass(frozen=True)
class ExitOptions:
    """The exits to add to a backbone; `auto` is explained in docs/explanation/decisions.md."""

    exits: str | Iterable[int] = "all"
    heads: str = "auto"  # linear, pooler, shared, family, attention
    pooling: str = "auto"  # first, mean; for per-token answer types: tokens
    num_labels: int | None = None
    labels: Sequence[str] | None = None
    problem_type: str | None = None
    num_layers: int | None = None  # use only the first layers
    policy: str | policies.Policy = "never"
    lte: bool = False
    fresh_head: bool = False  # replace a classifier's own head
    queries: int = QUERIES  # for attention heads
    query_width: int = QUERY_WIDTH
    convolution: int = 0  # channels, for attention heads on layers 0 to 2
    interaction: int = 0  # projections, for attention heads on the first layers
    answer_options: Mapping[str, Any] | None = None  # of the answer type, instead of what the checkpoint implies

    @property
    def answer_type(self) -> AnswerType | None:
        """The answer type of the problem type, if that is set."""
        return ANSWER_TYPES[str(self.problem_type)] if self.problem_type in ANSWER_TYPES else None

    @property
    def per_token(self) -> bool:
        """Whether the model has an output per token."""
        return self.problem_type in ANSWER_TYPES and ANSWER_TYPES[str(self.problem_type)].per_token

    @property
    def fixed_labels(self) -> tuple[str, ...] | None:
        """The labels, if the answer type determines them."""
        known = self.problem_type in ANSWER_TYPES
        return ANSWER_TYPES[str(self.problem_type)].fixed_labels if known else None

    @property
    def architecture(self) -> str:
        """The suffix of the transformers class for this problem type, such as ForSequenceClassification."""
        known = self.problem_type in ANSWER_TYPES
        return (ANSWER_TYPES[str(self.problem_type)] if known else AnswerType).architecture


@dataclass(frozen=True)
class AttachResult:
    """The config of the new model, and the checkpoint's weights under the new model's names."""

    config: AdaptiveConfig
    weights: dict[str, Tensor]


def attach(checkpoint: str, exit_options: ExitOptions, **load_options: Any) -> AttachResult:
    """Load a checkpoint and return the config and weights of the model with exits.

    A fine-tuned classifier keeps its head, labels and pooling at the last exit, unless another number of labels, a
    fresh head or fewer layers are requested. `load_options` are passed to `from_pretrained`.
    """
    with loading(checkpoint):
        backbone = AutoConfig.from_pretrained(checkpoint, **_hub_options(load_options))
    if backbone.model_type == "offramp":
        raise BadModel(f"{checkpoint} already is an offramp model. Load it with AdaptiveModel.from_pretrained.")
    family = family_of(backbone)
    answer_type = answer_type_of_architectures(backbone.architectures or ())
    if exit_options.problem_type is None and answer_type is not None:
        exit_options = replace(exit_options, problem_type=answer_type.name)
    shortened = _shorten(backbone, exit_options.num_layers)
    labels = _head_labels(checkpoint, backbone, exit_options)
    exit_options = _with_answer_options(checkpoint, backbone, exit_options, labels)
    keeps_head = labels is not None and not shortened
    if keeps_head and family.name == "elasticbert":
        raise BadModel(f"{checkpoint} is a fine-tuned ElasticBERT model. Convert it with `offramp convert`.")
    model_class: Any = getattr(transformers, f"AutoModel{exit_options.architecture}") if keeps_head else AutoModel
    source, encoder, dtype = _load(checkpoint, backbone, model_class, shortened, load_options)
    backbone.dtype = dtype
    backbone._name_or_path = ""  # do not publish local paths
    config = _build_config(backbone, family, exit_options, labels, keeps_head)
    weights = {f"backbone.{key}": value for key, value in encoder.items() if not _is_pooler(key)}
    head_modules = _original_head(family, backbone, exit_options)
    weights |= _head_weights(config, family, encoder, source if keeps_head else None, head_modules)
    return AttachResult(config, _reorder_classifier(weights, config, labels) if keeps_head else weights)


def add_exits(config: AdaptiveConfig, weights: Mapping[str, Tensor], exit_options: ExitOptions) -> AttachResult:
    """Add early exits to an offramp model that only has the last exit, which stays unchanged."""
    family, backbone = config.family, config.backbone
    exit_options = replace(exit_options, problem_type=config.answer_type.name)
    heads, pooling = _resolve_heads(family, backbone, exit_options)
    (last,) = config.exit_specs
    early = _build_specs(exit_layers(exit_options.exits, config.num_layers), heads, pooling, exit_options)[:-1]
    new_config = copy.deepcopy(config)
    new_config.exits = [spec.to_dict() for spec in (*early, last)]
    new_config.lte = exit_options.lte
    copies: dict[str, Tensor] = {}
    for part in ("weight", "bias"):  # initialise poolers and norms from those of the last exit
        pooler = weights.get(f"exits.{last.layer}.dense.{part}")
        if heads == "pooler" and pooler is not None:
            copies |= {f"exits.{spec.layer}.dense.{part}": pooler.clone() for spec in early}
        norm = weights.get(f"backbone.final_norm.{part}")
        if family.pre_norm and norm is not None:
            copies |= {f"exits.{spec.layer}.input_norm.{part}": norm.clone() for spec in early}
    return AttachResult(new_config, {**weights, **copies})


def _hub_options(load_options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: load_options[key] for key in HUB_OPTIONS if key in load_options}


def _shorten(backbone: PreTrainedConfig, layers: int | None) -> bool:
    """Reduce the backbone's config to its first `layers` layers; return whether it was changed."""
    depth = backbone.num_hidden_layers
    if hasattr(backbone, "num_output_layers"):  # ElasticBERT: at most one pooler per layer
        backbone.num_output_layers = min(backbone.num_output_layers, layers or depth)
    if layers is None or layers == depth:
        return False
    if not 1 <= layers < depth:
        raise BadValue(f"`num_layers` must be between 1 and {depth} (the checkpoint's layers), got {layers}.")
    if getattr(backbone, "num_hidden_groups", 1) > 1:
        raise BadValue("`num_layers=` does not support ALBERT models with several layer groups.")
    backbone.num_hidden_layers = layers
    if getattr(backbone, "layer_types", None):
        backbone.layer_types = backbone.layer_types[:layers]
    return True


def _head_labels(checkpoint: str, backbone: PreTrainedConfig, exit_options: ExitOptions) -> list[str] | None:
    """Return the labels of a classifier in the order of its head, as requested; None if its head is not used.

    Labels are matched by name, ignoring case and order. Generic names (LABEL_0, …) and requested names 0, 1, … are
    matched by position. Other names would assign predictions to the wrong labels, so they need a fresh head.
    """
    has_head = any(name.endswith(exit_options.architecture) for name in backbone.architectures or ())
    if not has_head or exit_options.fresh_head:
        return None
    if exit_options.fixed_labels is not None:
        return list(exit_options.fixed_labels)
    head_labels = [str(backbone.id2label[index]) for index in range(backbone.num_labels)]
    requested = exit_options.labels
    count = len(requested) if requested is not None else exit_options.num_labels
    if count not in (None, len(head_labels)):
        logger.warning(
            "%s has %d labels, but %s are requested: its head is replaced by a new, untrained one.",
            checkpoint,
            len(head_labels),
            count,
        )
        return None
    if requested is None:
        return head_labels
    by_name = {label.casefold(): label for label in requested}
    if {name.casefold() for name in head_labels} == set(by_name):
        return [by_name[name.casefold()] for name in head_labels]
    generic = all(re.fullmatch(r"LABEL_\d+", name) for name in head_labels)
    numbered = [*requested] == [str(index) for index in range(len(head_labels))]
    if generic or numbered or len(head_labels) == 1:  # a single label is the output of a regression
        return [*requested]
    raise BadValue(
        f"The labels of {checkpoint} are {', '.join(head_labels)}, but {', '.join(requested)} are requested. "
        "Use the same names, or train a new head with `fresh_head=True`."
    )


def _with_answer_options(
    checkpoint: str, backbone: PreTrainedConfig, exit_options: ExitOptions, head_labels: Sequence[str] | None
) -> ExitOptions:
    """Return the options with the labels in the order of the answer type, and with what its folder implies."""
    answer_type = exit_options.answer_type
    if answer_type is None or head_labels is None:
        return exit_options
    implied = answer_type.options_of_checkpoint(checkpoint, backbone)
    options = exit_options.answer_options if implied is None else {**implied, **(exit_options.answer_options or {})}
    ordered = answer_type.order_outputs(checkpoint, exit_options.labels or head_labels)
    labels = exit_options.labels if ordered == list(head_labels) else ordered
    return replace(exit_options, answer_options=options, labels=labels)


def _reorder_classifier(
    weights: dict[str, Tensor], config: AdaptiveConfig, labels: Sequence[str] | None
) -> dict[str, Tensor]:
    """Return the weights with the rows of the last classifier in the order of the config's labels."""
    if labels is None or tuple(labels) == config.labels or set(labels) != set(config.labels):
        return weights
    order = torch.tensor([list(labels).index(label) for label in config.labels])
    last = f"exits.{config.exit_specs[-1].layer}.classifier"
    return weights | {key: weights[key][order] for key in (f"{last}.weight", f"{last}.bias") if key in weights}


def _load(
    checkpoint: str, backbone: PreTrainedConfig, model_class: Any, shortened: bool, load_options: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor], torch.dtype]:
    """Return the state dicts of the checkpoint and of its encoder, and their dtype."""
    has_head = model_class is not AutoModel
    with loading(checkpoint):
        model, report = model_class.from_pretrained(
            checkpoint, config=backbone, output_loading_info=True, **load_options
        )
    backbone._attn_implementation = model.config._attn_implementation
    encoder = model.base_model if has_head else model
    missing = {key for key in report["missing_keys"] if has_head or not _is_pooler(key)}
    if missing:
        raise BadModel(f"{checkpoint} lacks {len(missing)} weights: {_list_keys(missing)}.")
    if unexpected := [key for key in report["unexpected_keys"] if not shortened and _is_encoder_weight(key)]:
        raise BadModel(f"{checkpoint} has weights that do not match its config.json: {_list_keys(unexpected)}.")
    if not backbone.architectures and any(key.startswith("classifier.") for key in report["unexpected_keys"]):
        raise BadModel(
            f"{checkpoint} has a classifier, but its config.json has no `architectures`. Add "
            '"architectures": ["…ForSequenceClassification"] to config.json, or remove the classifier\'s weights.'
        )
    # a pooler that is missing in the checkpoint has random weights
    random_keys = {key.split(".", 1)[1] if has_head else key for key in report["missing_keys"]}
    loaded = {key: value for key, value in encoder.state_dict().items() if key not in random_keys}
    return model.state_dict(), loaded, model.dtype


def _is_pooler(key: str) -> bool:
    return "pooler." in key


def _is_encoder_weight(key: str) -> bool:
    return bool(re.search(r"(^|\.)(encoder|transformer|layers|embeddings)\.", key)) and not key.endswith("_ids")


def _list_keys(keys: Iterable[str]) -> str:
    ordered = sorted(keys)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


def _build_config(
    backbone: PreTrainedConfig,
    family: Family,
    exit_options: ExitOptions,
    head_labels: Sequence[str] | None,
    keeps_head: bool,
) -> AdaptiveConfig:
    layers = exit_layers(exit_options.exits, backbone.num_hidden_layers)
    heads, pooling = _resolve_heads(family, backbone, exit_options)
    specs = _build_specs(layers, heads, pooling, exit_options)
    if keeps_head:
        specs[-1] = ExitSpec(layers[-1], "family", _original_head(family, backbone, exit_options).pooling)
    labels = head_labels if exit_options.labels is None else exit_options.labels
    labels = exit_options.fixed_labels or labels
    num_labels = exit_options.num_labels
    if (num_labels is not None and num_labels < 1) or (labels is not None and not labels):
        raise BadValue("A model needs at least one label (exactly one for a regression).")
    label_options: dict[str, Any] = {"num_labels": num_labels or 2}
    if labels is not None:
        if num_labels not in (None, len(labels)):
            raise BadValue(f"`num_labels` is {num_labels}, but there are {len(labels)} labels.")
        label_options = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    return AdaptiveConfig(
        backbone=backbone,
        attn_implementation=backbone._attn_implementation,
        exits=specs,
        policy=policies.parse(exit_options.policy).to_dict(),
        lte=exit_options.lte,
        problem_type=exit_options.problem_type or (None if head_labels is None else backbone.problem_type),
        answer_options=exit_options.answer_options,
        **label_options,
    )


def _build_specs(layers: Sequence[int], heads: str, pooling: str, exit_options: ExitOptions) -> list[ExitSpec]:
    queries, width, channels = exit_options.queries, exit_options.query_width, exit_options.convolution
    if exit_options.per_token and heads == "linear":
        early = [ExitSpec(layer, heads, pooling, convolution=channels) for layer in layers[:-1]]
        return [*early, ExitSpec(layers[-1], heads, pooling)]
    if heads != "attention":
        return [ExitSpec(layer, heads, pooling) for layer in layers]
    return [
        ExitSpec(
            layer,
            heads,
            pooling,
            1.0,
            queries,
            width,
            channels if layer <= CONVOLUTION_LAYERS else 0,
            exit_options.interaction if layer <= INTERACTION_LAYERS else 0,
        )
        for layer in layers
    ]


def _resolve_heads(family: Family, backbone: PreTrainedConfig, exit_options: ExitOptions) -> tuple[str, str]:
    """Return the heads and the pooling, with `auto` replaced, or raise if they do not fit together."""
    heads, pooling = exit_options.heads, exit_options.pooling
    if heads != "auto" and heads not in HEADS:
        raise UnknownName("head", heads, ["auto", *HEADS])
    if pooling != "auto" and pooling not in POOLINGS:
        raise UnknownName("pooling", pooling, ["auto", *POOLINGS])
    if heads == "auto":
        heads = "pooler" if pooling == "first" or family.name == "elasticbert" else "linear"
    if pooling == "auto":
        original = family.classifier_head(backbone).pooling
        pooling = {"linear": "mean", "family": original, "attention": "queries"}.get(heads, "first")
        pooling = "tokens" if exit_options.per_token else pooling
    if heads != "attention" and (exit_options.queries, exit_options.query_width) != (QUERIES, QUERY_WIDTH):
        raise BadValue(f"Only attention heads have queries, and the heads are {heads}. Set `heads='attention'`.")
    if exit_options.convolution and heads != "attention" and not (exit_options.per_token and heads == "linear"):
        raise BadValue(f"Only attention heads have a convolution, and the heads are {heads}. Set `convolution=0`.")
    if heads == "attention" and exit_options.per_token:
        raise BadValue("Attention heads do not support an output per token. Set `heads='linear'`.")
    if (pooling == "queries") is not (heads == "attention"):
        raise BadValue(f"Heads {heads!r} do not support pooling {pooling!r}. Remove `pooling=`.")
    if (pooling == "tokens") is not exit_options.per_token:
        need = "needs pooling 'tokens'" if exit_options.per_token else "does not support pooling 'tokens'"
        raise BadValue(f"The problem type {need}. Remove `pooling=`.")
    return heads, pooling


def _original_head(family: Family, backbone: PreTrainedConfig, exit_options: ExitOptions) -> HeadModules:
    if not exit_options.per_token:
        return family.classifier_head(backbone)
    return family.token_head(ANSWER_TYPES[str(exit_options.problem_type)].head_module)


def _head_weights(
    config: AdaptiveConfig,
    family: Family,
    encoder: Mapping[str, Tensor],
    source: Mapping[str, Tensor] | None,
    head_modules: HeadModules,
) -> dict[str, Tensor]:
    """Return the exit heads' weights that come from the checkpoint: poolers, the final norm, its own head."""
    weights: dict[str, Tensor] = {}

    def copy_module(name: str | None, target: str, state: Mapping[str, Tensor] = encoder) -> None:
        for part in ("weight", "bias"):
            if f"{name}.{part}" in state:
                weights[f"{target}.{part}"] = state[f"{name}.{part}"].clone()

    specs = config.exit_specs
    for spec in specs:
        if spec.head == "pooler":
            copy_module(family.pooler(spec.layer), f"exits.{spec.layer}.dense")
        if spec.head == "shared":
            copy_module(family.pooler(spec.layer), "exits.shared.dense")
        if family.pre_norm and spec is not specs[-1]:
            copy_module("final_norm", f"exits.{spec.layer}.input_norm")
    if source is not None:
        last = f"exits.{specs[-1].layer}"
        copy_module(head_modules.dense, f"{last}.dense", source)
        copy_module(head_modules.dense_norm, f"{last}.dense_norm", source)
        copy_module(head_modules.classifier, f"{last}.classifier", source)
    return weights
