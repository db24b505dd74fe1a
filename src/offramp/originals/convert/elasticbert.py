"""ElasticBERT: static (one classifier), dynamic (one per output layer) and released (none) checkpoints."""

from __future__ import annotations

from offramp import policies
from offramp.errors import BadValue
from offramp.model.config import AdaptiveConfig
from offramp.model.exit_spec import ExitSpec
from offramp.originals.convert.checkpoint import Checkpoint, Converted, ConvertOptions

__all__ = ["convert", "is_elasticbert"]

PREFIX = "elasticbert."


def is_elasticbert(checkpoint: Checkpoint) -> bool:
    """Return whether it is an ElasticBERT checkpoint, by its model type or its numbered poolers."""
    return checkpoint.config.get("model_type") == "elasticbert" or any(
        key.removeprefix(PREFIX).startswith("encoder.pooler.") for key in checkpoint.weights
    )


def convert(checkpoint: Checkpoint, options: ConvertOptions) -> Converted:
    """Convert every output layer to an exit with its own pooler; `options.layers` keeps only the first layers."""
    num_layers = int(checkpoint.config["num_hidden_layers"])
    depth = num_layers if options.layers is None else options.layers
    if not 1 <= depth <= num_layers:
        raise BadValue(f"`layers` must be between 1 and {num_layers}, got {options.layers}.")
    has_one_classifier = "classifier.weight" in checkpoint.weights
    is_static = has_one_classifier or options.layers is not None
    num_outputs = 1 if is_static else int(checkpoint.config.get("num_output_layers", num_layers))
    layers = range(depth - num_outputs + 1, depth + 1)
    backbone = checkpoint.backbone_config("elasticbert", num_hidden_layers=depth, num_output_layers=num_outputs)
    config = AdaptiveConfig(
        backbone=backbone,
        exits=[ExitSpec(layer, "pooler", "first") for layer in layers],
        policy=policies.parse(options.policy).to_dict(),
        faithful=options.faithful,
        **checkpoint.labels,
    )
    prefix = PREFIX if any(key.startswith(PREFIX) for key in checkpoint.weights) else ""
    deeper = [rf"^encoder\.layer\.{index}\." for index in range(depth, num_layers)]
    encoder = checkpoint.pick(prefix, [r"^encoder\.pooler\.", r"position_ids$", *HEADS, *deeper])
    weights = {f"backbone.{key}": value for key, value in encoder.items()}
    first = num_layers - int(checkpoint.config.get("num_output_layers", num_layers))  # layers before the first output
    for layer in layers:
        dense = checkpoint.pick(f"{prefix}encoder.pooler.{layer - 1}.dense.")
        weights |= {f"exits.{layer}.dense.{key}": value for key, value in dense.items()}
        head = checkpoint.pick("classifier." if has_one_classifier else f"classifiers.{layer - 1 - first}.")
        weights |= {f"exits.{layer}.classifier.{key}": value for key, value in head.items()}
    has_no_classifiers = not any(key.startswith("classifier") for key in checkpoint.weights)
    notes = (
        ["The checkpoint has no classifiers: the exits' classifiers are random; train them."]
        if has_no_classifiers
        else []
    )
    ignored_keys = (r"encoder\.layer\.", r"encoder\.pooler\.", r"^classifiers\.") if is_static else ()
    return Converted(config, weights, notes, has_no_classifiers, ignored_keys)


# heads that a checkpoint without a prefix has beside the encoder
HEADS = (r"^predictions\.", r"^sop_classifier\.", r"^cls\.", r"^classifiers?\.")
