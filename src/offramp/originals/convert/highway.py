"""DeeBERT, DeeBERT+SD, RomeBERT and BERxiT: one highway (pooler and classifier) behind every layer.

The four save the same keys, BERxiT with its LTE unit and a second copy of everything under `core.`. The last
layer's highway, which no original trains, is kept as the last exit's ramp.
"""

from __future__ import annotations

from torch import Tensor

from offramp import policies
from offramp.errors import BadModel, BadValue
from offramp.model.config import AdaptiveConfig, ExitSpec
from offramp.originals.convert.checkpoint import Checkpoint, Converted, ConvertOptions

__all__ = ["convert", "is_berxit", "prefix_of"]

FAMILIES = ("bert", "roberta", "albert")


def prefix_of(checkpoint: Checkpoint) -> str | None:
    """The family whose encoder holds highways."""
    found = {key.split(".encoder.highway.")[0] for key in checkpoint.weights if ".encoder.highway." in key}
    found -= {"core"}
    found = {name for name in found if not name.startswith("slow_")}
    return min(found) if found else None


def is_berxit(checkpoint: Checkpoint) -> bool:
    """Whether the highways are BERxiT's."""
    return any(key.startswith("core.") or ".lte_classifier." in key for key in checkpoint.weights)


def convert(checkpoint: Checkpoint, options: ConvertOptions) -> Converted:
    """Highways become exits with poolers on the first token; the final classifier is the last exit."""
    if options.layers is not None:
        raise BadValue("Only an ElasticBERT checkpoint can be cut to its first layers.")
    family = prefix_of(checkpoint)
    if family not in FAMILIES:
        raise BadModel(
            f"{checkpoint.folder}: highways on {family!r} cannot be read; known families: {', '.join(FAMILIES)}."
        )
    depth = int(checkpoint.config["num_hidden_layers"])
    has_lte = f"{family}.encoder.lte_classifier.weight" in checkpoint.weights
    config = AdaptiveConfig(
        backbone=checkpoint.backbone_config(family),
        exits=[ExitSpec(layer, "pooler", "first") for layer in range(1, depth + 1)],
        policy=policies.parse(options.policy).to_dict(),
        lte=has_lte,
        ramp="judges" if is_berxit(checkpoint) else "answers",
        faithful=options.faithful,
        **checkpoint.labels,
    )
    weights = {f"backbone.{key}": value for key, value in checkpoint.pick(f"{family}.", ENCODER_ONLY).items()}
    for layer in range(1, depth):
        weights |= _highway(checkpoint, family, layer, f"exits.{layer}")
    weights |= _highway(checkpoint, family, depth, f"exits.{depth}.ramp")
    pooler = f"{family}.pooler." if family == "albert" else f"{family}.pooler.dense."
    weights |= _under(checkpoint, pooler, f"exits.{depth}.dense")
    weights |= _under(checkpoint, "classifier.", f"exits.{depth}.classifier")
    if has_lte:
        weights |= _under(checkpoint, f"{family}.encoder.lte_classifier.", "exits.lte")
    return Converted(config, weights, _notes(checkpoint, has_lte))


ENCODER_ONLY = (r"^encoder\.highway\.", r"^encoder\.lte_classifier\.", r"^pooler\.", r"position_ids$")


def _under(checkpoint: Checkpoint, prefix: str, target: str) -> dict[str, Tensor]:
    return {f"{target}.{key}": value for key, value in checkpoint.pick(prefix).items()}


def _highway(checkpoint: Checkpoint, family: str, layer: int, target: str) -> dict[str, Tensor]:
    highway = f"{family}.encoder.highway.{layer - 1}."
    return _under(checkpoint, f"{highway}pooler.dense.", f"{target}.dense") | _under(
        checkpoint, f"{highway}classifier.", f"{target}.classifier"
    )


def _notes(checkpoint: Checkpoint, has_lte: bool) -> list[str]:
    routine = checkpoint.config.get("divide")
    if has_lte and isinstance(routine, str) and not routine.endswith("-lte"):
        return [f"The training routine was {routine!r}: its LTE module was never trained, so do not use `learned`."]
    return []
