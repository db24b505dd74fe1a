"""EBERT: two predictors per layer beside an ordinary BERT or RoBERTa classifier, or one that answers questions."""

from __future__ import annotations

import re

from offramp import policies
from offramp.answers import SPAN
from offramp.errors import BadModel, BadValue
from offramp.model.config import AdaptiveConfig, ExitSpec
from offramp.originals.convert.checkpoint import Checkpoint, Converted, ConvertOptions
from offramp.originals.width.spec import Width

__all__ = ["convert", "prefix_of"]

PREDICTOR = re.compile(r"encoder\.layer\.(\d+)\.(attention\.self|intermediate)\.predictor\.(\d)\.(\w+)")
PARTS = {"0": "reduce", "1": "norm", "3": "expand"}
HEADS = {
    "bert": {"bert.pooler.dense.": "dense.", "classifier.": "classifier."},
    "roberta": {"classifier.dense.": "dense.", "classifier.out_proj.": "classifier."},
}
SPAN_HEAD = {"qa_outputs.": "classifier."}


SPANS: dict[str, object] = {"id2label": dict(enumerate(SPAN.fixed_labels or ())), "problem_type": SPAN.name}


def prefix_of(checkpoint: Checkpoint) -> str | None:
    """The family whose layers hold predictors."""
    for family in HEADS:
        if f"{family}.encoder.layer.0.attention.self.predictor.0.weight" in checkpoint.weights:
            return family
    return None


def convert(checkpoint: Checkpoint, options: ConvertOptions) -> Converted:
    """The encoder, its gates, and one exit behind the last layer."""
    family = prefix_of(checkpoint)
    if family is None:
        raise BadModel(f"{checkpoint.folder}: an EBERT checkpoint has predictors in the layers of bert or roberta.")
    if options.pad_to is not None and not 1 <= options.pad_to <= checkpoint.config.get("max_position_embeddings", 512):
        raise BadValue(f"pad-to is {options.pad_to}; it is from 1 to what the checkpoint has positions for.")
    if options.layers is not None:
        raise BadValue("Only an ElasticBERT checkpoint can be cut to its first layers.")
    spans = "qa_outputs.weight" in checkpoint.weights
    if options.no_answer and not spans:
        raise BadValue(f"{checkpoint.folder} does not answer questions; leave `no_answer=` out.")
    backbone = checkpoint.backbone_config(family)
    config = AdaptiveConfig(
        backbone=backbone,
        exits=[ExitSpec(backbone.num_hidden_layers, "family", "tokens" if spans else "first")],
        policy=policies.parse(options.policy).to_dict(),
        faithful=options.faithful,
        width=_width(checkpoint, options),
        no_answer=0.0 if options.no_answer else None,
        **(SPANS if spans else _labels(checkpoint, family)),
    )
    encoder = checkpoint.pick(f"{family}.", [r"^pooler\.", r"position_ids$", r"\.predictor\.", r"_nopruned_times$"])
    weights = {f"backbone.{key}": value for key, value in encoder.items()}
    for key, value in checkpoint.pick(f"{family}.", [r"^(?!.*\.predictor\.)"]).items():
        weights[_gate(key)] = value
    for theirs, ours in (SPAN_HEAD if spans else HEADS[family]).items():
        for key, value in checkpoint.pick(theirs).items():
            weights[f"exits.{backbone.num_hidden_layers}.{ours}{key}"] = value
    return Converted(config, weights, _notes(checkpoint, options), leaves=(r"_nopruned_times$",))


def _gate(key: str) -> str:
    found = PREDICTOR.fullmatch(key)
    if found is None or found[3] not in PARTS:
        raise BadModel(f"{key} is no part of a predictor.")
    which = "heads" if found[2] == "attention.self" else "channels"
    return f"gates.{int(found[1]) + 1}.{which}.{PARTS[found[3]]}.{found[4]}"


def _labels(checkpoint: Checkpoint, family: str) -> dict[str, object]:
    last = "classifier.weight" if family == "bert" else "classifier.out_proj.weight"
    classes = int(checkpoint.weights[last].shape[0]) if last in checkpoint.weights else checkpoint.num_labels
    names = checkpoint.labels.get("id2label") or {}
    return checkpoint.labels if len(names) == classes else {"num_labels": classes}


def _width(checkpoint: Checkpoint, options: ConvertOptions) -> dict[str, object]:
    """Its own settings; what it averaged and counted it goes on averaging and counting."""
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
            "Its first gate reads padding, too, and the checkpoint does not say how far rows were padded: before it "
            "answers texts, convert it with `pad_to=`, the max_seq_length of its training."
        )
    if checkpoint.config.get("fill_mode") not in (None, "zero"):
        notes.append(f"fill_mode {checkpoint.config['fill_mode']} had no effect in the original and has none here.")
    return notes
