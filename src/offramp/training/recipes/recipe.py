"""What a recipe is: stages, each with a loss and the parameters that it trains.

Recipes are read for `--help` too, so these files load torch and the losses only when a stage is made.
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

__all__ = ["Published", "Recipe", "Stage", "option"]


def everything(name: str) -> bool:
    """Every parameter."""
    return True


@dataclass(frozen=True)
class Stage:
    """One run of the loop with an optimiser and a schedule of its own."""

    name: str
    loss: Callable[[BatchOutputs, int], Tensor]  # of a batch and its index within its epoch, from 0
    trains: Callable[[str], bool] = everything  # by the parameter's name
    freezes: bool = False  # the rest gets no gradient and is in evaluation mode
    equilibrium: bool = False  # ElasticBERT's rescaled gradients
    # RomeBERT's projection: the batch's loss in two parts, the reference first
    parts: Callable[[BatchOutputs], tuple[Tensor, Tensor]] | None = None
    gates: str = "on"  # a width model's: on; open: nothing is pruned; live: noisy and counting though they are frozen
    from_states: bool = False  # heads alone, from the encoder's states, which are computed once
    only_fresh: bool = False  # left out where the last head was trained already
    with_risk_model_of: str = "mean"  # which score on dev chooses the checkpoint: the exits' mean, or the last exit's


@dataclass(frozen=True)
class Published:
    """The settings that the authors' scripts used, or, where there are none, ours."""

    epochs: float = 3
    batch_size: int = 8
    learning_rate: float = 2e-5
    weight_decay: float = 0.0
    warmup: float = 0.0  # steps; below 1 a share of all steps
    max_length: int = 128
    head: str = "pooler"  # on the first token


def option(default: Any, about: str, choices: tuple[str, ...] | None = None) -> Any:
    """A recipe's option: the command line, its help and `--recipe list` are made from this."""
    return field(default=default, metadata={"help": about, "choices": choices})


@dataclass(frozen=True)
class Recipe(ABC):
    """A way to train exits; a subclass's fields are its options."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    about: ClassVar[str]
    published: ClassVar[Published] = Published()
    only_last: ClassVar[bool] = False  # the model has no early exits
    lte: ClassVar[bool] = False  # trains BERxiT's learning-to-exit module
    needs_classes: ClassVar[bool] = False  # it is for answers that are one class

    faithful: bool = option(False, "train as the original did, quirks and all")

    def width(self) -> dict[str, Any] | None:
        """The gates that its models get; None: none."""
        return None

    def gate_rate(self, usual: float) -> float | None:
        """The gates' own learning rate, which has no schedule; None: they learn like the rest."""
        return None

    @abstractmethod
    def stages(self, config: AdaptiveConfig, task: str | None) -> tuple[Stage, ...]:
        """What is trained, one after the other; `task` is the benchmark's name where there is one."""
