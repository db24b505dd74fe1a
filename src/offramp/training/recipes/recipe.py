"""The base class of recipes: a recipe is a sequence of stages, each with a loss and the parameters it trains.

`--help` reads the recipes too, so these modules import torch and the losses only inside `stages`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from offramp.model.config import AdaptiveConfig
    from offramp.training.recipes.losses import BatchOutputs

__all__ = ["PublishedSettings", "Recipe", "Stage", "option"]


def all_parameters(name: str) -> bool:
    """Select every parameter."""
    return True


@dataclass(frozen=True)
class Stage:
    """One run of the training loop, with its own optimizer and schedule."""

    name: str
    loss: Callable[[BatchOutputs, int], Tensor]  # of a batch and its index within the epoch, from 0
    trains: Callable[[str], bool] = all_parameters  # whether the parameter of this name is trained
    freeze_others: bool = False  # the other parameters get no gradient and their modules are in evaluation mode
    equilibrium: bool = False  # ElasticBERT's gradient equilibrium
    # RomeBERT's gradient projection: the loss of a batch in two parts, the reference first
    loss_parts: Callable[[BatchOutputs], tuple[Tensor, Tensor]] | None = None
    # gates of a width model: on; open: nothing is pruned; live: sampled and part of the loss, though frozen
    gates: str = "on"
    from_states: bool = False  # train only the heads, on encoder states that are computed once
    skip_if_trained: bool = False  # skipped if the last exit's head is trained already
    select_by: str = "mean"  # dev score that selects the checkpoint: "mean" of the exits, or the "last" exit


@dataclass(frozen=True)
class PublishedSettings:
    """Hyperparameters of the authors' scripts, or our defaults for recipes without any."""

    epochs: float = 3
    batch_size: int = 8
    learning_rate: float = 2e-5
    weight_decay: float = 0.0
    warmup: float = 0.0  # steps; below 1, a fraction of all steps
    max_length: int = 128
    head: str = "pooler"  # with pooling="first"


def option(default: Any, description: str, choices: tuple[str, ...] | None = None) -> Any:
    """Return a dataclass field for a recipe option; `--help` and `--recipe list` are built from it."""
    return field(default=default, metadata={"help": description, "choices": choices})


@dataclass(frozen=True)
class Recipe(ABC):
    """A way to train exits. The dataclass fields of a subclass are its options."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    description: ClassVar[str]
    published: ClassVar[PublishedSettings] = PublishedSettings()
    single_exit: ClassVar[bool] = False  # the model has only the last exit
    lte: ClassVar[bool] = False  # trains BERxiT's learning-to-exit module
    single_label_only: ClassVar[bool] = False  # supports single-label classification only
    policy: ClassVar[str] = "entropy"  # the exit policy of the paper, which `evaluate` shows first

    faithful: bool = option(
        False, "reproduce the quirks of the original implementation; see above for training as published"
    )

    def width(self) -> dict[str, Any] | None:
        """Return the config of the gates to add to the model, or None."""
        return None

    def gate_learning_rate(self, learning_rate: float) -> float | None:
        """Return the constant learning rate of the gates; None trains them like the other parameters."""
        return None

    @abstractmethod
    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """Return the stages in order; `task` is the benchmark task's name, if any."""
