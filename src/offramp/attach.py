"""Put exits on a checkpoint: any encoder of a known family, or a classifier that was fine-tuned from one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedConfig

from offramp import policies
from offramp.backbones import Family
from offramp.config import HEADS, POOLINGS, AdaptiveConfig, ExitSpec, exit_layers, family_of
from offramp.errors import BadModel, BadValue, UnknownName
from offramp.loading import loading

__all__ = ["HUB_OPTIONS", "Attached", "Wanted", "attach"]

HUB_OPTIONS = ("revision", "cache_dir", "token", "subfolder", "local_files_only", "force_download")


@dataclass(frozen=True)
class Wanted:
    """The exits that a caller wants on a backbone; `auto` is explained in docs/architecture.md."""

    exits: str | Iterable[int] = "all"
    heads: str = "auto"  # linear, pooler, shared, family
    pooling: str = "auto"  # first, mean
    num_labels: int | None = None
    labels: Sequence[str] | None = None
    problem_type: str | None = None
    num_layers: int | None = None  # only the first so many
    policy: str | policies.Policy = "never"
    lte: bool = False


@dataclass(frozen=True)
class Attached:
    """A config, and the weights that came with the checkpoint, named as our model names them."""

    config: AdaptiveConfig
    weights: dict[str, Tensor]


def attach(checkpoint: str, wanted: Wanted, **options: Any) -> Attached:
    """Read a checkpoint and say what our model over it looks like.

    A fine-tuned classifier keeps its head, its labels and what it reads at the last exit, unless other
    labels or fewer layers are asked for. `options` go to Hugging Face's `from_pretrained`.
    """
    with loading(checkpoint):
        backbone = AutoConfig.from_pretrained(checkpoint, **_for_config(options))
    if backbone.model_type == "offramp":
        raise BadModel(f"{checkpoint} is an offramp model already; load it with AdaptiveModel.from_pretrained.")
    family = family_of(backbone)
    shortened = _shorten(backbone, wanted.num_layers)
    labelled = _is_classifier(backbone) and _fits(backbone, wanted)
    own = labelled and not shortened
    if own and family.name == "elasticbert":
        raise BadModel(f"{checkpoint} is a fine-tuned ElasticBERT; make a model of it with `offramp convert`.")
    source, encoder, dtype = _load(checkpoint, backbone, own, shortened, options)
    backbone.dtype = dtype
    backbone._name_or_path = ""  # where it lay on this machine is nobody's business
    config = _config(backbone, family, wanted, labelled, own)
    weights = {f"backbone.{key}": value for key, value in encoder.items() if not _is_pooler(key)}
    return Attached(config, weights | _heads(config, family, encoder, source if own else None))


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


def _is_classifier(backbone: PreTrainedConfig) -> bool:
    return any(name.endswith("ForSequenceClassification") for name in backbone.architectures or ())


def _fits(backbone: PreTrainedConfig, wanted: Wanted) -> bool:
    labels = len(wanted.labels) if wanted.labels is not None else wanted.num_labels
    return labels is None or labels == backbone.num_labels


def _load(
    checkpoint: str, backbone: PreTrainedConfig, own: bool, shortened: bool, options: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor], torch.dtype]:
    """The checkpoint's own state dict, its encoder's, and their type."""
    kind = AutoModelForSequenceClassification if own else AutoModel
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


def _config(backbone: PreTrainedConfig, family: Family, wanted: Wanted, labelled: bool, own: bool) -> AdaptiveConfig:
    heads, pooling = _style(family, backbone, wanted)
    layers = exit_layers(wanted.exits, backbone.num_hidden_layers)
    specs = [ExitSpec(layer, heads, pooling) for layer in layers]
    if own:
        specs[-1] = replace(specs[-1], head="family", pooling=family.own_head(backbone).pooling)
    labels = wanted.labels
    if labels is None and labelled:
        labels = [str(backbone.id2label[index]) for index in range(backbone.num_labels)]
    if (wanted.num_labels is not None and wanted.num_labels < 1) or (labels is not None and not labels):
        raise BadValue("A model needs at least one label (one alone: a regression).")
    naming: dict[str, Any] = {"num_labels": wanted.num_labels or 2}
    if labels is not None:
        if wanted.num_labels not in (None, len(labels)):
            raise BadValue(f"num_labels is {wanted.num_labels}, but {len(labels)} labels are named.")
        naming = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    return AdaptiveConfig(
        backbone=backbone,
        attn_implementation=backbone._attn_implementation,
        exits=specs,
        policy=policies.parse(wanted.policy).to_dict(),
        lte=wanted.lte,
        problem_type=wanted.problem_type or (backbone.problem_type if labelled else None),
        **naming,
    )


def _style(family: Family, backbone: PreTrainedConfig, wanted: Wanted) -> tuple[str, str]:
    heads, pooling = wanted.heads, wanted.pooling
    if heads != "auto" and heads not in HEADS:
        raise UnknownName("head", heads, ["auto", *HEADS])
    if pooling != "auto" and pooling not in POOLINGS:
        raise UnknownName("pooling", pooling, ["auto", *POOLINGS])
    if heads == "auto":
        heads = "pooler" if pooling == "first" or family.name == "elasticbert" else "linear"
    if pooling == "auto":
        own = family.own_head(backbone).pooling
        pooling = {"linear": "mean", "family": own}.get(heads, "first")
    return heads, pooling


def _heads(
    config: AdaptiveConfig, family: Family, encoder: Mapping[str, Tensor], source: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """The exits' weights that the checkpoint brings: its poolers, its final norm, its own head."""
    found: dict[str, Tensor] = {}

    def copy(name: str | None, target: str, where: Mapping[str, Tensor] = encoder) -> None:
        for part in ("weight", "bias"):
            if f"{name}.{part}" in where:
                found[f"{target}.{part}"] = where[f"{name}.{part}"].clone()

    specs = config.exit_specs
    for spec in specs:
        if spec.head == "pooler":
            copy(family.pooler(spec.layer), f"exits.{spec.layer}.dense")
        if spec.head == "shared":
            copy(family.pooler(spec.layer), "exits.shared.dense")
        if family.pre_norm and spec is not specs[-1]:
            copy("final_norm", f"exits.{spec.layer}.input_norm")
    if source is not None:
        own = family.own_head(config.backbone)
        last = f"exits.{specs[-1].layer}"
        copy(own.dense, f"{last}.dense", source)
        copy(own.dense_norm, f"{last}.dense_norm", source)
        copy(own.classifier, f"{last}.classifier", source)
    return found
