"""PABEE: a linear classifier behind every layer, one pooler for all of them; BERT and ALBERT."""

from __future__ import annotations

from offramp import policies
from offramp.errors import BadModel, BadValue
from offramp.model.config import AdaptiveConfig, ExitSpec
from offramp.originals.convert.checkpoint import Checkpoint, Converted, ConvertOptions

__all__ = ["convert", "prefix_of"]

POOLERS = {"bert": "bert.pooler.dense.", "albert": "albert.pooler."}


def prefix_of(checkpoint: Checkpoint) -> str | None:
    """The family whose single pooler stands beside numbered classifiers."""
    if "classifiers.0.weight" not in checkpoint.weights:
        return None
    return next((name for name, pooler in POOLERS.items() if f"{pooler}weight" in checkpoint.weights), None)


def convert(checkpoint: Checkpoint, options: ConvertOptions) -> Converted:
    """Every classifier becomes an exit behind the shared pooler."""
    if options.layers is not None:
        raise BadValue("Only an ElasticBERT checkpoint can be cut to its first layers.")
    family = prefix_of(checkpoint)
    if family is None:
        raise BadModel(f"{checkpoint.folder}: a PABEE checkpoint has classifiers.0 and a pooler of bert or albert.")
    depth = int(checkpoint.config["num_hidden_layers"])
    config = AdaptiveConfig(
        backbone=checkpoint.backbone_config(family),
        exits=[ExitSpec(layer, "shared", "first") for layer in range(1, depth + 1)],
        policy=policies.parse(options.policy).to_dict(),
        faithful=options.faithful,
        **checkpoint.labels,
    )
    encoder = checkpoint.pick(f"{family}.", [r"^pooler\.", r"position_ids$"])
    weights = {f"backbone.{key}": value for key, value in encoder.items()}
    weights |= {f"exits.shared.dense.{key}": value for key, value in checkpoint.pick(POOLERS[family]).items()}
    for key, value in checkpoint.pick("classifiers.").items():
        index, part = key.split(".", 1)
        weights[f"exits.{int(index) + 1}.classifier.{part}"] = value
    return Converted(config, weights)
