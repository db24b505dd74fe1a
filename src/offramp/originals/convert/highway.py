"""DeeBERT, DeeBERT+SD, RomeBERT and BERxiT: one highway (pooler and classifier) after every layer.

All four save the same keys; BERxiT adds its LTE module and a copy of all weights under `core.`. The last layer's
highway, which no original trains, becomes the last exit's ramp.
"""

from __future__ import annotations

from torch import Tensor

from offramp import policies
from offramp.errors import BadModel, BadValue
from offramp.model.config import AdaptiveConfig
from offramp.model.exit_spec import ExitSpec
from offramp.originals.convert.checkpoint import Checkpoint, Converted, ConvertOptions

__all__ = ["convert", "detect_family", "is_berxit"]

FAMILIES = ("bert", "roberta", "albert")


def detect_family(checkpoint: Checkpoint) -> str | None:
    """Return the family whose encoder has highways."""
    families = {key.split(".encoder.highway.")[0] for key in checkpoint.weights if ".encoder.highway." in key}
    families = {name for name in families - {"core"} if not name.startswith("slow_")}
    return min(families) if families else None


def is_berxit(checkpoint: Checkpoint) -> bool:
    """Return whether it is a BERxiT checkpoint."""
    return any(key.startswith("core.") or ".lte_classifier." in key for key in checkpoint.weights)


def convert(checkpoint: Checkpoint, options: ConvertOptions) -> Converted:
    """Convert highways to exits with poolers on the first token; the final classifier is the last exit."""
    if options.layers is not None:
        raise BadValue("`layers=` applies to ElasticBERT checkpoints only; remove it.")
    family = detect_family(checkpoint)
    if family not in FAMILIES:
        raise BadModel(f"{checkpoint.folder}: unsupported family {family!r}. Supported: {', '.join(FAMILIES)}.")
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
    weights |= _pick_as(checkpoint, pooler, f"exits.{depth}.dense")
    weights |= _pick_as(checkpoint, "classifier.", f"exits.{depth}.classifier")
    if has_lte:
        weights |= _pick_as(checkpoint, f"{family}.encoder.lte_classifier.", "exits.lte")
    return Converted(config, weights, _notes(checkpoint, has_lte))


ENCODER_ONLY = (r"^encoder\.highway\.", r"^encoder\.lte_classifier\.", r"^pooler\.", r"position_ids$")


def _pick_as(checkpoint: Checkpoint, prefix: str, target: str) -> dict[str, Tensor]:
    return {f"{target}.{key}": value for key, value in checkpoint.pick(prefix).items()}


def _highway(checkpoint: Checkpoint, family: str, layer: int, target: str) -> dict[str, Tensor]:
    highway = f"{family}.encoder.highway.{layer - 1}."
    return _pick_as(checkpoint, f"{highway}pooler.dense.", f"{target}.dense") | _pick_as(
        checkpoint, f"{highway}classifier.", f"{target}.classifier"
    )


def _notes(checkpoint: Checkpoint, has_lte: bool) -> list[str]:
    routine = checkpoint.config.get("divide")
    if has_lte and isinstance(routine, str) and not routine.endswith("-lte"):
        return [f"It was trained with {routine!r}, so its LTE module is untrained: do not use the `learned` policy."]
    return []
