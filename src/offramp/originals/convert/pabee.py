"""PABEE on BERT and ALBERT: a linear classifier after every layer, with one shared pooler."""

from __future__ import annotations

from offramp import policies
from offramp.errors import BadModel, BadValue
from offramp.model.config import AdaptiveConfig
from offramp.model.exit_spec import ExitSpec
from offramp.originals.convert.checkpoint import Checkpoint, Converted, ConvertOptions

__all__ = ["convert", "detect_family"]

POOLERS = {"bert": "bert.pooler.dense.", "albert": "albert.pooler."}


def detect_family(checkpoint: Checkpoint) -> str | None:
    """Return the family, if the checkpoint has numbered classifiers and a single pooler."""
    if "classifiers.0.weight" not in checkpoint.weights:
        return None
    return next((name for name, pooler in POOLERS.items() if f"{pooler}weight" in checkpoint.weights), None)


def convert(checkpoint: Checkpoint, options: ConvertOptions) -> Converted:
    """Convert every classifier to an exit with the shared pooler."""
    if options.layers is not None:
        raise BadValue("`layers=` applies to ElasticBERT checkpoints only; remove it.")
    family = detect_family(checkpoint)
    if family is None:
        raise BadModel(
            f"{checkpoint.folder} is not a PABEE checkpoint: it has no classifiers.0 or no pooler of bert or albert."
        )
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
