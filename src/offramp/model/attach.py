"""Put exits on a checkpoint: any encoder of a known family, or a classifier that was fine-tuned from one."""

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
from offramp.answers import ANSWER_TYPES, AnswerType, type_of_architectures
from offramp.encoders import Family, OwnHead
from offramp.errors import BadModel, BadValue, UnknownName
from offramp.files.faults import loading
from offramp.model.config import (
    HEADS,
    POOLINGS,
    QUERIES,
    QUERY_WIDTH,
    AdaptiveConfig,
    ExitSpec,
    exit_layers,
    family_of,
)

__all__ = ["HUB_OPTIONS", "Attached", "ExitOptions", "add_exits", "attach"]

logger = logging.getLogger("offramp")

HUB_OPTIONS = ("revision", "cache_dir", "token", "subfolder", "local_files_only", "force_download")


@dataclass(frozen=True)
class ExitOptions:
    """The exits that a caller asks for on a backbone; `auto` is explained in docs/architecture.md."""

    exits: str | Iterable[int] = "all"
    heads: str = "auto"  # linear, pooler, shared, family, attention
    pooling: str = "auto"  # first, mean; tokens where every token is answered
    num_labels: int | None = None
    labels: Sequence[str] | None = None
    problem_type: str | None = None
    num_layers: int | None = None  # only the first so many
    policy: str | policies.Policy = "never"
    lte: bool = False
    fresh_head: bool = False  # leave a classifier's own head out
    queries: int = QUERIES  # of heads that read with attention
    query_width: int = QUERY_WIDTH

    @property
    def per_token(self) -> bool:
        """Whether every token is answered."""
        return self.problem_type in ANSWER_TYPES and ANSWER_TYPES[str(self.problem_type)].per_token

    @property
    def fixed_labels(self) -> tuple[str, ...] | None:
        """What the outputs are called, whoever asks."""
        known = self.problem_type in ANSWER_TYPES
        return ANSWER_TYPES[str(self.problem_type)].fixed_labels if known else None

    @property
    def architecture(self) -> str:
        """The end of the name of transformers' class that has such a head."""
        known = self.problem_type in ANSWER_TYPES
        return (ANSWER_TYPES[str(self.problem_type)] if known else AnswerType).architecture


@dataclass(frozen=True)
class Attached:
    """A config, and the weights that came with the checkpoint, named as our model names them."""

    config: AdaptiveConfig
    weights: dict[str, Tensor]


def attach(checkpoint: str, asked: ExitOptions, **options: Any) -> Attached:
    """Read a checkpoint and say what our model over it looks like.

    A fine-tuned classifier keeps its head, its labels and what it reads at the last exit, unless another number of
    labels, a fresh head or fewer layers are asked for. `options` go to Hugging Face's `from_pretrained`.
    """
    with loading(checkpoint):
        backbone = AutoConfig.from_pretrained(checkpoint, **_for_config(options))
    if backbone.model_type == "offramp":
        raise BadModel(f"{checkpoint} is an offramp model already; load it with AdaptiveModel.from_pretrained.")
    family = family_of(backbone)
    if asked.problem_type is None and (own_type := type_of_architectures(backbone.architectures or ())) is not None:
        asked = replace(asked, problem_type=own_type.name)
    shortened = _shorten(backbone, asked.num_layers)
    names = _own_labels(checkpoint, backbone, asked)
    own = names is not None and not shortened
    if own and family.name == "elasticbert":
        raise BadModel(f"{checkpoint} is a fine-tuned ElasticBERT; make a model of it with `offramp convert`.")
    kind: Any = getattr(transformers, f"AutoModel{asked.architecture}") if own else AutoModel
    source, encoder, dtype = _load(checkpoint, backbone, kind, shortened, options)
    backbone.dtype = dtype
    backbone._name_or_path = ""  # where it lay on this machine is nobody's business
    config = _config(backbone, family, asked, names, own)
    weights = {f"backbone.{key}": value for key, value in encoder.items() if not _is_pooler(key)}
    weights |= _heads(config, family, encoder, source if own else None, _own_head(family, backbone, asked))
    return Attached(config, _in_order(weights, config, names) if own else weights)


def add_exits(config: AdaptiveConfig, weights: Mapping[str, Tensor], asked: ExitOptions) -> Attached:
    """More exits on a model of ours that has one, behind its last layer; that one stays as it is."""
    family, backbone = config.family, config.backbone
    asked = replace(asked, problem_type=config.answer_type.name)
    heads, _ = style = _style(family, backbone, asked)
    (own,) = config.exit_specs
    specs = _specs(exit_layers(asked.exits, config.num_layers), style, asked)
    new = copy.deepcopy(config)
    new.exits = [spec.to_dict() for spec in (*specs[:-1], own)]
    new.lte = asked.lte
    last = f"exits.{own.layer}"
    copies: dict[str, Tensor] = {}
    for part in ("weight", "bias"):  # what its pooler learnt is where the others' start
        learnt = weights.get(f"{last}.dense.{part}")
        if heads == "pooler" and learnt is not None:
            copies |= {f"exits.{spec.layer}.dense.{part}": learnt.clone() for spec in specs[:-1]}
        norm = weights.get(f"backbone.final_norm.{part}")
        if family.pre_norm and norm is not None:
            copies |= {f"exits.{spec.layer}.input_norm.{part}": norm.clone() for spec in specs[:-1]}
    return Attached(new, {**weights, **copies})


def _for_config(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: options[key] for key in HUB_OPTIONS if key in options}


def _shorten(backbone: PreTrainedConfig, layers: int | None) -> bool:
    depth = backbone.num_hidden_layers
    if hasattr(backbone, "num_output_layers"):  # ElasticBERT: never more poolers than layers
        backbone.num_output_layers = min(backbone.num_output_layers, layers or depth)
    if layers is None or layers == depth:
        return False
    if not 1 <= layers < depth:
        raise BadValue(f"num_layers is {layers}; the checkpoint has {depth} layers.")
    if getattr(backbone, "num_hidden_groups", 1) > 1:
        raise BadValue("An ALBERT with several layer groups cannot be cut: the groups are spread over its full depth.")
    backbone.num_hidden_layers = layers
    if getattr(backbone, "layer_types", None):
        backbone.layer_types = backbone.layer_types[:layers]
    return True


def _is_of(backbone: PreTrainedConfig, kind: str) -> bool:
    return any(name.endswith(kind) for name in backbone.architectures or ())


def _own_labels(checkpoint: str, backbone: PreTrainedConfig, asked: ExitOptions) -> list[str] | None:
    """A classifier's classes in the order of its head, called as they are asked for; None: its head is not kept.

    Classes are matched by name, whatever their case and order. Those that nobody named (LABEL_0, …), and numbers from
    0 on, stand for positions. Other names would turn answers round, so they need a fresh head.
    """
    if not _is_of(backbone, asked.architecture) or asked.fresh_head:
        return None
    if asked.fixed_labels is not None:
        return list(asked.fixed_labels)
    own = [str(backbone.id2label[index]) for index in range(backbone.num_labels)]
    count = len(asked.labels) if asked.labels is not None else asked.num_labels
    if count not in (None, len(own)):
        logger.warning(
            "%s answers with %d classes and %s are asked for: its own head is left out.", checkpoint, len(own), count
        )
        return None
    if asked.labels is None:
        return own
    by_name = {label.casefold(): label for label in asked.labels}
    if {name.casefold() for name in own} == set(by_name):
        return [by_name[name.casefold()] for name in own]
    if all(re.fullmatch(r"LABEL_\d+", name) for name in own) or [*asked.labels] == [str(i) for i in range(len(own))]:
        return [*asked.labels]
    if len(own) == 1:  # a regression's one output
        return [*asked.labels]
    raise BadValue(
        f"{checkpoint} answers with {', '.join(own)}, and {', '.join(asked.labels)} are asked for; name them alike, or "
        "ask for a fresh head (`fresh_head=True`), which has to be trained."
    )


def _in_order(weights: dict[str, Tensor], config: AdaptiveConfig, names: Sequence[str] | None) -> dict[str, Tensor]:
    """The last classifier's rows in the order of the config's labels."""
    if names is None or tuple(names) == config.labels or set(names) != set(config.labels):
        return weights
    order = torch.tensor([list(names).index(label) for label in config.labels])
    last = f"exits.{config.exit_specs[-1].layer}.classifier"
    return weights | {key: weights[key][order] for key in (f"{last}.weight", f"{last}.bias") if key in weights}


def _load(
    checkpoint: str, backbone: PreTrainedConfig, kind: Any, shortened: bool, options: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor], torch.dtype]:
    """The checkpoint's own state dict, its encoder's, and their type."""
    own = kind is not AutoModel
    with loading(checkpoint):
        model, report = kind.from_pretrained(checkpoint, config=backbone, output_loading_info=True, **options)
    backbone._attn_implementation = model.config._attn_implementation
    encoder = model.base_model if own else model
    missing = {key for key in report["missing_keys"] if own or not _is_pooler(key)}
    if missing:
        raise BadModel(f"{checkpoint} lacks {len(missing)} weights of its model: {_some(missing)}.")
    if strange := [key for key in report["unexpected_keys"] if not shortened and _of_the_encoder(key)]:
        raise BadModel(f"{checkpoint} holds weights that its config does not: {_some(strange)}.")
    if not backbone.architectures and any(key.startswith("classifier.") for key in report["unexpected_keys"]):
        raise BadModel(
            f"{checkpoint} holds a classifier, but its config names no class for it; add "
            '"architectures": ["…ForSequenceClassification"] to its config.json, or take the classifier out.'
        )
    # a pooler that the checkpoint does not have is not a pre-trained one
    absent = {key.split(".", 1)[1] if own else key for key in report["missing_keys"]}
    kept = {key: value for key, value in encoder.state_dict().items() if key not in absent}
    return model.state_dict(), kept, model.dtype


def _is_pooler(key: str) -> bool:
    return "pooler." in key


def _of_the_encoder(key: str) -> bool:
    return bool(re.search(r"(^|\.)(encoder|transformer|layers|embeddings)\.", key)) and not key.endswith("_ids")


def _some(keys: Iterable[str]) -> str:
    first = sorted(keys)
    return ", ".join(first[:5]) + (f" and {len(first) - 5} more" if len(first) > 5 else "")


def _config(
    backbone: PreTrainedConfig, family: Family, asked: ExitOptions, names: Sequence[str] | None, own: bool
) -> AdaptiveConfig:
    specs = _specs(exit_layers(asked.exits, backbone.num_hidden_layers), _style(family, backbone, asked), asked)
    if own:
        specs[-1] = replace(specs[-1], head="family", pooling=_own_head(family, backbone, asked).pooling)
    labels = names if asked.labels is None else asked.labels
    labels = asked.fixed_labels or labels
    if (asked.num_labels is not None and asked.num_labels < 1) or (labels is not None and not labels):
        raise BadValue("A model needs at least one label (one alone: a regression).")
    naming: dict[str, Any] = {"num_labels": asked.num_labels or 2}
    if labels is not None:
        if asked.num_labels not in (None, len(labels)):
            raise BadValue(f"num_labels is {asked.num_labels}, but {len(labels)} labels are named.")
        naming = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    return AdaptiveConfig(
        backbone=backbone,
        attn_implementation=backbone._attn_implementation,
        exits=specs,
        policy=policies.parse(asked.policy).to_dict(),
        lte=asked.lte,
        problem_type=asked.problem_type or (None if names is None else backbone.problem_type),
        **naming,
    )


def _specs(layers: Sequence[int], style: tuple[str, str], asked: ExitOptions) -> list[ExitSpec]:
    own = (asked.queries, asked.query_width) if style[0] == "attention" else ()
    return [ExitSpec(layer, *style, 1.0, *own) for layer in layers]


def _style(family: Family, backbone: PreTrainedConfig, asked: ExitOptions) -> tuple[str, str]:
    heads, pooling = asked.heads, asked.pooling
    if heads != "auto" and heads not in HEADS:
        raise UnknownName("head", heads, ["auto", *HEADS])
    if pooling != "auto" and pooling not in POOLINGS:
        raise UnknownName("pooling", pooling, ["auto", *POOLINGS])
    if heads == "auto":
        heads = "pooler" if pooling == "first" or family.name == "elasticbert" else "linear"
    if pooling == "auto":
        own = family.own_head(backbone).pooling
        pooling = {"linear": "mean", "family": own, "attention": "queries"}.get(heads, "first")
        pooling = "tokens" if asked.per_token else pooling
    if heads != "attention" and (asked.queries, asked.query_width) != (QUERIES, QUERY_WIDTH):
        raise BadValue(f"Only heads with attention have queries, and these are {heads}; say `heads='attention'`.")
    if heads == "attention" and asked.per_token:
        raise BadValue("Attention reads the tokens for one answer, and here every token has one; use linear heads.")
    if (pooling == "queries") is not (heads == "attention"):
        raise BadValue("Heads with attention read with their queries, and no others do; leave `pooling=` out.")
    if (pooling == "tokens") is not asked.per_token:
        raise BadValue("What is answered at every token is read there, and nothing else is; leave `pooling=` out.")
    return heads, pooling


def _own_head(family: Family, backbone: PreTrainedConfig, asked: ExitOptions) -> OwnHead:
    if not asked.per_token:
        return family.own_head(backbone)
    return family.token_head(ANSWER_TYPES[str(asked.problem_type)].head_module)


def _heads(
    config: AdaptiveConfig,
    family: Family,
    encoder: Mapping[str, Tensor],
    source: Mapping[str, Tensor] | None,
    own: OwnHead,
) -> dict[str, Tensor]:
    """The exits' weights that the checkpoint brings: its poolers, its final norm, its own head."""
    weights: dict[str, Tensor] = {}

    def take(name: str | None, target: str, where: Mapping[str, Tensor] = encoder) -> None:
        for part in ("weight", "bias"):
            if f"{name}.{part}" in where:
                weights[f"{target}.{part}"] = where[f"{name}.{part}"].clone()

    specs = config.exit_specs
    for spec in specs:
        if spec.head == "pooler":
            take(family.pooler(spec.layer), f"exits.{spec.layer}.dense")
        if spec.head == "shared":
            take(family.pooler(spec.layer), "exits.shared.dense")
        if family.pre_norm and spec is not specs[-1]:
            take("final_norm", f"exits.{spec.layer}.input_norm")
    if source is not None:
        last = f"exits.{specs[-1].layer}"
        take(own.dense, f"{last}.dense", source)
        take(own.dense_norm, f"{last}.dense_norm", source)
        take(own.classifier, f"{last}.classifier", source)
    return weights
