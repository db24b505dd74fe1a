"""EBERT: gates that prune attention heads and feed-forward channels per input, trained with a fine-tuned model."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from offramp.training.recipes.recipe import PublishedSettings, Recipe, Stage, option

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = ["Ebert"]

logger = logging.getLogger("offramp")

MODES = ("gumbel", "topk")


def is_not_gate(name: str) -> bool:
    """Select every parameter except those of the gates."""
    return not name.startswith("gates.")


@dataclass(frozen=True)
class Ebert(Recipe):
    """The task's loss plus three terms that pull the remaining operations to a target."""

    name: ClassVar[str] = "ebert"
    paper: ClassVar[str] = "EBERT, Findings of ACL 2021, 425"
    description: ClassVar[str] = (
        "attention heads and channels pruned per input; a model that is not fine-tuned is fine-tuned first"
    )
    published: ClassVar[PublishedSettings] = PublishedSettings(3, 32, 3e-5, head="family")
    single_exit: ClassVar[bool] = True

    target_ratio: float = option(0.8, "fraction of the operations to keep, above 0 and at most 1")
    loss_lambda: float = option(4.0, "weight of the loss terms that pull towards --target-ratio")
    predictor_lr: float = option(0.02, "constant learning rate of the gates")
    head_mode: str = option("gumbel", "how attention heads are selected: sampled gates, or a fixed fraction", MODES)
    ffn_mode: str = option("gumbel", "how feed-forward channels are selected", MODES)
    head_group: int = option(1, "attention heads that are pruned together")
    ffn_block: int = option(1, "channels that are pruned together: 1 as published; 64, 128 or 256 run faster")
    freeze_predictor: bool = option(False, "add a third stage with frozen gates")

    def width(self) -> dict[str, Any] | None:
        """Return the config of the gates."""
        from offramp.originals.width.spec import Width

        if self.head_mode == "gumbel" and self.ffn_mode == "topk":
            logger.warning(
                "With `ffn_mode='topk'` no loss term pulls the attention heads towards the target; "
                "use `head_mode='topk'` too, or `ffn_mode='gumbel'`."
            )
        return Width(
            self.head_mode,
            self.ffn_mode,
            self.target_ratio,
            self.loss_lambda,
            self.head_group,
            self.ffn_block,
            first="all" if self.faithful else "real",
            flops="original" if self.faithful else "exact",
        ).to_dict()

    def gate_learning_rate(self, learning_rate: float) -> float | None:
        """Return the gates' learning rate; with `topk` heads they are trained like the other parameters."""
        return self.predictor_lr if self.head_mode == "gumbel" else None

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return fine-tuning, then training with gates, then optionally training with frozen gates."""
        from offramp.training.recipes.losses import BatchOutputs, gate_loss, joint, last_exit

        def loss(batch: BatchOutputs, step: int) -> Any:
            # as published: no gate loss without gumbel channel gates, whatever the heads use
            has_gate_loss = self.ffn_mode == "gumbel" and self.target_ratio < 1
            return joint(batch) + (self.loss_lambda * gate_loss(batch) if has_gate_loss else 0)

        plain = Stage("plain", lambda batch, step: last_exit(batch), is_not_gate, gates="open", skip_if_trained=True)
        width = Stage("width", loss)
        frozen = Stage("frozen", loss, is_not_gate, freeze_others=True, gates="live" if self.faithful else "on")
        return (plain, width, frozen) if self.freeze_predictor else (plain, width)
