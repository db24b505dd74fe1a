"""ElasticBERT: static (one classifier), dynamic (one per output layer) and released (none) checkpoints."""

from __future__ import annotations

from offramp import policies
from offramp.errors import BadValue
from offramp.model.config import AdaptiveConfig, ExitSpec
from offramp.originals.convert.checkpoint import Checkpoint, Converted, ConvertOptions

__all__ = ["convert", "is_elasticbert"]

PREFIX = "elasticbert."


def is_elasticbert(checkpoint: Checkpoint) -> bool:
    """By its model type, or by its numbered poolers."""
    return checkpoint.config.get("model_type") == "elasticbert" or any(
        key.removeprefix(PREFIX).startswith("encoder.pooler.") for key in checkpoint.weights
    )


def convert(checkpoint: Checkpoint, options: ConvertOptions) -> Converted:
    """Every output layer becomes an exit with its own pooler; `layers` takes the first so many, statically."""
    built = int(checkpoint.config["num_hidden_layers"])
    depth = built if options.layers is None else options.layers
    if not 1 <= depth <= built:
        raise BadValue(f"layers is {options.layers}; the checkpoint has {built}.")
    static = "classifier.weight" in checkpoint.weights or options.layers is not None
    outputs = 1 if static else int(checkpoint.config.get("num_output_layers", built))
    layers = range(depth - outputs + 1, depth + 1)
    backbone = checkpoint.backbone_config("elasticbert", num_hidden_layers=depth, num_output_layers=outputs)
    config = AdaptiveConfig(
        backbone=backbone,
        exits=[ExitSpec(layer, "pooler", "first") for layer in layers],
        policy=policies.parse(options.policy).to_dict(),
        faithful=options.faithful,
        **checkpoint.labels,
    )
    prefix = PREFIX if any(key.startswith(PREFIX) for key in checkpoint.weights) else ""
    deeper = [rf"^encoder\.layer\.{index}\." for index in range(depth, built)]
    body = checkpoint.pick(prefix, [r"^encoder\.pooler\.", r"position_ids$", *HEADS, *deeper])
    weights = {f"backbone.{key}": value for key, value in body.items()}
    first = built - int(checkpoint.config.get("num_output_layers", built))  # the layer below the first classifier's
    for layer in layers:
        dense = checkpoint.pick(f"{prefix}encoder.pooler.{layer - 1}.dense.")
        weights |= {f"exits.{layer}.dense.{key}": value for key, value in dense.items()}
        one_for_all = "classifier.weight" in checkpoint.weights
        head = checkpoint.pick("classifier." if one_for_all else f"classifiers.{layer - 1 - first}.")
        weights |= {f"exits.{layer}.classifier.{key}": value for key, value in head.items()}
    fresh = not any(key.startswith("classifier") for key in checkpoint.weights)
    notes = ["The checkpoint has no classifiers: the exits' classifiers are random, train them."] if fresh else []
    leaves = (r"encoder\.layer\.", r"encoder\.pooler\.", r"^classifiers\.") if static else ()
    return Converted(config, weights, notes, fresh, leaves)


# without a prefix these stand beside the body
HEADS = (r"^predictions\.", r"^sop_classifier\.", r"^cls\.", r"^classifiers?\.")
