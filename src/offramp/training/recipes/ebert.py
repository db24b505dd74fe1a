"""EBERT: gates that prune heads and channels per input, trained beside a model that has learnt its task."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from offramp.training.recipes.recipe import Published, Recipe, Stage, option

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

__all__ = ["Ebert"]

logger = logging.getLogger("offramp")

MODES = ("gumbel", "topk")


def not_a_gate(name: str) -> bool:
    """Every parameter but the gates'."""
    return not name.startswith("gates.")


@dataclass(frozen=True)
class Ebert(Recipe):
    """The task's loss, and three terms that pull the operations left to a target."""

    name: ClassVar[str] = "ebert"
    paper: ClassVar[str] = "EBERT, Findings of ACL 2021, 425"
    about: ClassVar[str] = (
        "heads and channels pruned per input; a model that is not fine-tuned yet learns its task first"
    )
    published: ClassVar[Published] = Published(3, 32, 3e-5, head="family")
    only_last: ClassVar[bool] = True

    target_ratio: float = option(0.8, "the share of the operations to keep, above 0 and at most 1")
    loss_lambda: float = option(4.0, "the weight of the terms that pull there")
    predictor_lr: float = option(0.02, "the gates' learning rate, which has no schedule")
    head_mode: str = option("gumbel", "how heads are chosen: noisy gates, or a fixed share", MODES)
    ffn_mode: str = option("gumbel", "how feed-forward channels are chosen", MODES)
    head_group: int = option(1, "heads that are kept or pruned together")
    ffn_block: int = option(1, "channels likewise: 1 as published; 64, 128 or 256 run faster")
    freeze_predictor: bool = option(False, "a third stage, in which the gates stay as they are")

    def width(self) -> dict[str, Any] | None:
        """The gates that a model gets."""
        from offramp.originals.width.spec import Width

        if self.head_mode == "gumbel" and self.ffn_mode == "topk":
            logger.warning("With topk channels nothing pulls the heads to the target; their gates are free.")
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

    def gate_rate(self, usual: float) -> float | None:
        """The gates' own learning rate; None: with `topk` heads one optimiser has them all."""
        return self.predictor_lr if self.head_mode == "gumbel" else None

    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Plain, then gates and all, then perhaps all but the gates."""
        from offramp.training.recipes.losses import BatchOutputs, joint, last_exit, narrowing

        def narrow(batch: BatchOutputs, step: int) -> Any:
            # as published: without noisy channel gates nothing pulls, whatever the heads do
            pull = self.ffn_mode == "gumbel" and self.target_ratio < 1
            return joint(batch) + (self.loss_lambda * narrowing(batch) if pull else 0)

        plain = Stage("plain", lambda batch, step: last_exit(batch), not_a_gate, gates="open", only_fresh=True)
        width = Stage("width", narrow)
        frozen = Stage("frozen", narrow, not_a_gate, freezes=True, gates="live" if self.faithful else "on")
        return (plain, width, frozen) if self.freeze_predictor else (plain, width)
