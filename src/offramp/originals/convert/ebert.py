"""EBERT: BERT or RoBERTa for classification or question answering, with two gate predictors per layer."""

from __future__ import annotations

import re

from offramp import policies
from offramp.answers import SPAN
from offramp.errors import BadModel, BadValue
from offramp.model.config import AdaptiveConfig
from offramp.model.exit_spec import ExitSpec
from offramp.originals.convert.checkpoint import Checkpoint, Converted, ConvertOptions
from offramp.originals.width.spec import Width

__all__ = ["convert", "detect_family"]

PREDICTOR = re.compile(r"encoder\.layer\.(\d+)\.(attention\.self|intermediate)\.predictor\.(\d)\.(\w+)")
GATE_MODULES = {"0": "reduce", "1": "norm", "3": "expand"}
HEADS = {
    "bert": {"bert.pooler.dense.": "dense.", "classifier.": "classifier."},
    "roberta": {"classifier.dense.": "dense.", "classifier.out_proj.": "classifier."},
}
SPAN_HEAD = {"qa_outputs.": "classifier."}
SPAN_LABELS: dict[str, object] = {"id2label": dict(enumerate(SPAN.fixed_labels or ())), "problem_type": SPAN.name}


def detect_family(checkpoint: Checkpoint) -> str | None:
    """Return the family whose layers have gate predictors."""
    for family in HEADS:
        if f"{family}.encoder.layer.0.attention.self.predictor.0.weight" in checkpoint.weights:
            return family
    return None


def convert(checkpoint: Checkpoint, options: ConvertOptions) -> Converted:
    """Convert the encoder, its gates, and one exit after the last layer."""
    family = detect_family(checkpoint)
    if family is None:
        raise BadModel(f"{checkpoint.folder} is not an EBERT checkpoint: no layer of bert or roberta has predictors.")
    max_positions = checkpoint.config.get("max_position_embeddings", 512)
    if options.pad_to is not None and not 1 <= options.pad_to <= max_positions:
        raise BadValue(f"`pad_to` must be between 1 and {max_positions}, got {options.pad_to}.")
    if options.layers is not None:
        raise BadValue("`layers=` applies to ElasticBERT checkpoints only; remove it.")
    is_span = "qa_outputs.weight" in checkpoint.weights
    if options.no_answer and not is_span:
        raise BadValue(f"{checkpoint.folder} is not a question-answering model; remove `no_answer=`.")
    backbone = checkpoint.backbone_config(family)
    config = AdaptiveConfig(
        backbone=backbone,
        exits=[ExitSpec(backbone.num_hidden_layers, "family", "tokens" if is_span else "first")],
        policy=policies.parse(options.policy).to_dict(),
        faithful=options.faithful,
        width=_width(checkpoint, options),
        no_answer=0.0 if options.no_answer else None,
        **(SPAN_LABELS if is_span else _labels(checkpoint, family)),
    )
    encoder = checkpoint.pick(f"{family}.", [r"^pooler\.", r"position_ids$", r"\.predictor\.", r"_nopruned_times$"])
    weights = {f"backbone.{key}": value for key, value in encoder.items()}
    for key, value in checkpoint.pick(f"{family}.", [r"^(?!.*\.predictor\.)"]).items():
        weights[_gate_key(key)] = value
    for prefix, target in (SPAN_HEAD if is_span else HEADS[family]).items():
        for key, value in checkpoint.pick(prefix).items():
            weights[f"exits.{backbone.num_hidden_layers}.{target}{key}"] = value
    return Converted(config, weights, _notes(checkpoint, options), ignored_keys=(r"_nopruned_times$",))


def _gate_key(key: str) -> str:
    match = PREDICTOR.fullmatch(key)
    if match is None or match[3] not in GATE_MODULES:
        raise BadModel(f"{key} is not a weight of an EBERT predictor.")
    gate = "heads" if match[2] == "attention.self" else "channels"
    return f"gates.{int(match[1]) + 1}.{gate}.{GATE_MODULES[match[3]]}.{match[4]}"


def _labels(checkpoint: Checkpoint, family: str) -> dict[str, object]:
    key = "classifier.weight" if family == "bert" else "classifier.out_proj.weight"
    num_labels = int(checkpoint.weights[key].shape[0]) if key in checkpoint.weights else checkpoint.num_labels
    names = checkpoint.labels.get("id2label") or {}
    return checkpoint.labels if len(names) == num_labels else {"num_labels": num_labels}


def _width(checkpoint: Checkpoint, options: ConvertOptions) -> dict[str, object]:
    """Return the gate settings of the checkpoint, with the original's padding and FLOPs count."""
    saved = checkpoint.config
    pruned = float(saved.get("sparsity_target", 0.0))
    width = Width(
        heads=saved.get("head_mask_mode", "gumbel"),
        channels=saved.get("ffn_mask_mode", "gumbel"),
        target=1 - pruned,
        weight=float(saved.get("loss_lambda", 0.1)),
        first="all",
        pad_to=options.pad_to,
        flops="original",
    )
    return width.to_dict()


def _notes(checkpoint: Checkpoint, options: ConvertOptions) -> list[str]:
    notes = []
    if options.pad_to is None:
        notes.append(
            "Its first gate also averages over padding, and the checkpoint does not record the padded length: convert "
            "it again with `pad_to=` set to the max_seq_length of its training."
        )
    if checkpoint.config.get("fill_mode") not in (None, "zero"):
        notes.append(f"fill_mode {checkpoint.config['fill_mode']} is ignored, as in the original.")
    return notes
