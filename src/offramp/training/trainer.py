"""`transformers.Trainer`, and the few things it cannot do: losses of exits, frozen parts, two gradients."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import Trainer, TrainerCallback, get_scheduler

from offramp.errors import BadValue, CannotWrite
from offramp.files.writing import writing
from offramp.model.adaptive import AdaptiveModel
from offramp.model.exits import Head
from offramp.originals.width.counting import Terms, blocks_of, terms
from offramp.training.examples import GroupedOrder
from offramp.training.recipes import Recipe, Stage
from offramp.training.recipes.losses import BatchOutputs
from offramp.training.recipes.projection import Projection, project

__all__ = ["ExitTrainer", "LossSettings"]

QUICK = 1e-3  # at the encoder's rate a bare linear head lags behind the features that it reads (docs/results.md)
REDUCED = (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.MULTI_XPU, DistributedType.MULTI_NPU)


@dataclass(frozen=True)
class LossSettings:
    """How examples count, and how fast heads learn."""

    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0
    head_learning_rate: float | None = None
    group_by_length: bool = True


class ExitTrainer(Trainer):
    """One stage of a recipe.

    The loss comes from what every exit said. Gradients of several processes are averaged here and not in DDP's
    reducer: which exits take part changes with the recipe and the batch, and RomeBERT's projection needs two
    gradients per batch, each averaged before they are joined.
    """

    optimizer: Any
    lr_scheduler: Any

    def __init__(self, model: AdaptiveModel, recipe: Recipe, stage: Stage, weighing: LossSettings, **options: Any):
        self.stage, self.recipe, self.weighing = stage, recipe, weighing
        self.frozen = _freeze(model, stage)
        self.projected = _projected(model) if stage.parts is not None else []
        specs = model.config.exit_specs
        linear = [f"exits.{spec.layer}.classifier." for spec in specs if spec.head == "linear"]
        attention = [f"exits.{spec.layer}." for spec in specs if spec.head == "attention"]
        self.quick = (*linear, *attention, "exits.lte.")
        self.projection: Projection | None = None  # of the last batch
        self._micro = 0  # batches since the last update
        model.gradient_equilibrium = stage.equilibrium
        model.gates_are_open = stage.gates == "open"
        self.width: dict[str, Any] | None = None  # of the last batch
        options["args"]._n_gpu = min(1, options["args"].n_gpu)  # several GPUs: torchrun, not DataParallel
        super().__init__(model=model, **options)
        self.model_accepts_loss_kwargs = False
        if stage.parts is not None and self.accelerator.distributed_type not in (DistributedType.NO, *REDUCED):
            raise BadValue(f"Recipe {recipe.name} needs whole gradients; run it without FSDP or DeepSpeed.")

    # -- the loss --------------------------------------------------------------------------------

    def outputs(self, model: nn.Module, inputs: Mapping[str, Any]) -> BatchOutputs:
        """A pass in training mode: every exit's answer and the labels."""
        batch = {key: value for key, value in inputs.items() if key != "labels"}
        trained = self.model.trained_exits(model(**batch).exits)
        weights = self.weighing.class_weights
        return BatchOutputs(
            [output.raw for output in trained],
            inputs["labels"],
            self.model.config.answer_type,
            [output.uncertainty for output in trained if output.uncertainty is not None],
            None if weights is None else torch.tensor(weights, device=trained[0].logits.device),
            self.weighing.label_smoothing,
            self._width(trained[-1].kept, inputs),
        )

    def _width(self, kept: Tensor | None, inputs: Mapping[str, Any]) -> Terms | None:
        """What pulls gates to their target; noted for the log."""
        width = self.model.config.gating
        if kept is None or width is None:
            return None
        real = inputs["attention_mask"].sum(1)
        lengths = max(width.pad_to or 0, inputs["input_ids"].shape[1]) if width.flops == "original" else real
        made = terms(kept, lengths, blocks_of(self.model.config), width.prune)
        heads, channels = kept.detach().mean(0).T.tolist()
        self.width = {
            "width_ratio": 1 - made.sparsity.item(),
            "width_flops_term": made.flops.item(),
            "width_heads_term": made.heads.item(),
            "width_channels_term": made.channels.item(),
            "width_heads": heads,  # kept per layer, on the batch's average
            "width_channels": channels,
        }
        return made

    def step_in_epoch(self) -> int:
        """The index of this batch in its epoch, from 0; right after a resume, too."""
        return (self.state.global_step % self.updates_per_epoch) * self.args.gradient_accumulation_steps + self._micro

    @property
    def updates_per_epoch(self) -> int:
        """Batches over accumulation; what is left at the end is an update too."""
        return -(-len(self.callback_handler.train_dataloader) // self.args.gradient_accumulation_steps)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one batch; gradients are whole when the optimiser steps."""
        model.train()
        for module in self.frozen:
            module.eval()
        inputs = self._prepare_inputs(inputs)
        share = 1 / self.current_gradient_accumulation_steps
        with self._own_reduction(model):
            with self.compute_loss_context_manager():
                outputs = self.outputs(model, inputs)
                if self.stage.parts is not None:
                    reference, other = (part * share for part in self.stage.parts(outputs))
                else:
                    loss = self.stage.loss(outputs, self.step_in_epoch()) * share
            if self.stage.parts is not None:
                self._project(reference, other)
                loss = reference + other
            else:
                self.accelerator.backward(loss)
        self._micro += 1
        if self.accelerator.sync_gradients:
            self._micro = 0
            if self.stage.parts is None and self._reduces:
                self._average([value.grad for value in self.model.parameters() if value.grad is not None])
        return loss.detach()

    def _project(self, reference: Tensor, other: Tensor) -> None:
        """Two backward passes, each averaged over processes, joined on the projected weights.

        Under accumulation the reference holds what earlier batches left (already joined), as in the original.
        """
        parameters = [value for value in self.model.parameters() if value.requires_grad]
        before = [value.grad for value in parameters]
        each: list[list[Tensor | None]] = []
        for loss in (reference, other):
            for value in parameters:
                value.grad = None
            self.accelerator.backward(loss, retain_graph=loss is reference)
            each.append([value.grad for value in parameters])
            if self._reduces:
                self._average([one for one in each[-1] if one is not None])
        first = [_sum(old, new) for old, new in zip(before, each[0], strict=True)]
        places = [place for place, value in enumerate(parameters) if id(value) in self.projected]
        pairs = [(place, first[place], each[1][place]) for place in places]
        whole = [(place, a, b) for place, a, b in pairs if a is not None and b is not None]
        together, self.projection = project([a for _, a, _ in whole], [b for _, _, b in whole])
        joined = {place: one for (place, _, _), one in zip(whole, together, strict=True)}
        for place, value in enumerate(parameters):
            value.grad = joined[place] if place in joined else _sum(first[place], each[1][place])

    # -- several processes -----------------------------------------------------------------------

    @property
    def _reduces(self) -> bool:
        return self.accelerator.distributed_type in REDUCED

    @contextlib.contextmanager
    def _own_reduction(self, model: nn.Module) -> Iterator[None]:
        with self.accelerator.no_sync(model) if self._reduces else contextlib.nullcontext():
            yield

    def _average(self, gradients: list[Tensor]) -> None:
        for gradient in gradients:
            torch.distributed.all_reduce(gradient)
            gradient /= self.accelerator.num_processes

    # -- optimiser, schedule, order --------------------------------------------------------------

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """The library's rule; the originals' own under `faithful` (all but `bias` and `LayerNorm.weight`)."""
        if not self.recipe.faithful:
            return super().get_decay_parameter_names(model)
        names = [name for name, _ in model.named_parameters()]
        return [name for name in names if "bias" not in name and "LayerNorm.weight" not in name]

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Groups by weight decay and, where heads have a learning rate of their own, by that."""
        if self.optimizer is None:
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            self.optimizer = kind(self.parameter_groups(self.model if model is None else model), **options)
        return self.optimizer

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """What the optimiser holds: the stage's parameters."""
        decayed = set(self.get_decay_parameter_names(model))
        groups: dict[tuple[float, float, bool], dict[str, Any]] = {}
        for name, value in model.named_parameters():
            name = name.removeprefix("module.")
            if not value.requires_grad or not self.stage.trains(name):
                continue
            own = self.recipe.gate_rate(self.args.learning_rate) if name.startswith("gates.") else None
            rate = self._rate(name) if own is None else own
            decay = self.args.weight_decay if name in decayed and own is None else 0.0
            new: dict[str, Any] = {"params": [], "lr": rate, "weight_decay": decay, "constant": own is not None}
            groups.setdefault((rate, decay, own is not None), new)["params"].append(value)
        return list(groups.values())

    def _rate(self, name: str) -> float:
        """A parameter's learning rate: heads may have one of their own, and new ones have a quick one."""
        usual, heads = self.args.learning_rate, self.weighing.head_learning_rate
        if not name.startswith("exits."):
            return usual
        if heads is not None:
            return heads
        return max(usual, QUICK) if name.startswith(self.quick) and not self.recipe.faithful else usual

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The library's schedules; a warm-up given as a share is not rounded to whole steps."""
        if self.lr_scheduler is None:
            warmup = self.args.warmup_steps
            self.lr_scheduler = get_scheduler(
                self.args.lr_scheduler_type,
                optimizer=self.optimizer if optimizer is None else optimizer,
                num_warmup_steps=warmup if warmup >= 1 else warmup * num_training_steps,
                num_training_steps=num_training_steps,
            )
            _hold_constant(self.lr_scheduler)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        data: Any = self.train_dataset if train_dataset is None else train_dataset
        batch = self.args.train_batch_size * self.args.world_size
        lengths = data.lengths if self.weighing.group_by_length else None
        order = GroupedOrder(len(data), self.args.seed, batch, lengths)
        self.add_callback(Epochs(self, order))
        return order

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Longest first: little padding, and no score depends on the order."""
        return np.argsort(-eval_dataset.lengths, kind="stable").tolist()

    # -- dev, logs, checkpoints ------------------------------------------------------------------

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Every exit's logits, (rows, exits, classes)."""
        inputs = self._prepare_inputs(inputs)
        batch = {key: value for key, value in inputs.items() if key != "labels"}
        with torch.no_grad(), self.compute_loss_context_manager():
            out = model(**batch, policy="never", output_exits=True)
        own = [place for place, point in enumerate(self.model.exits.points) if not point.is_ramp]
        return None, out.exit_logits[:, own].float(), inputs.get("labels")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """With the projection's angle and norms, where there are some."""
        if self.projection is not None and "loss" in logs:
            scale = 1.0 if self.accelerator.scaler is None else self.accelerator.scaler.get_scale()
            logs |= {
                "gr_angle": self.projection.angle,
                "gr_reference_norm": self.projection.reference / scale,
                "gr_other_norm": self.projection.projected / scale,
            }
        if self.width is not None and "loss" in logs:
            logs |= self.width
        super().log(logs, start_time)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        try:
            with writing(folder):
                super()._save_checkpoint(model, trial)
        except CannotWrite:
            shutil.rmtree(folder, ignore_errors=True)  # a torn one is of no use, and the disk is full
            raise


def _hold_constant(schedule: Any) -> None:
    """Groups that ask for it keep their rate."""
    groups = schedule.optimizer.param_groups
    held = [place for place, group in enumerate(groups) if group.get("constant")]
    for place in held:
        if not hasattr(schedule, "lr_lambdas"):
            raise BadValue("The gates' rate has no schedule; choose a schedule such as linear, cosine or constant.")
        schedule.lr_lambdas[place] = _one
        groups[place]["lr"] = schedule._last_lr[place] = schedule.base_lrs[place]


def _one(step: int) -> float:
    return 1.0


class Epochs(TrainerCallback):
    """Tells the order which epoch it is; in a resumed epoch the library does not reach it."""

    def __init__(self, trainer: ExitTrainer, order: GroupedOrder):
        self.trainer, self.order = trainer, order

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Epochs are counted in updates, which a checkpoint knows exactly."""
        self.order.set_epoch(state.global_step // self.trainer.updates_per_epoch)


def _freeze(model: AdaptiveModel, stage: Stage) -> list[nn.Module]:
    """Gradients only where the stage trains, if it freezes the rest; the modules to put into evaluation mode."""
    for name, value in model.named_parameters():
        value.requires_grad_(not stage.freezes or stage.trains(name))
    if not stage.freezes:
        return []
    parts = {"backbone": model.backbone} | {f"exits.{name}": head for name, head in model.exits.items()}
    if model.gates is not None and stage.gates != "live":
        parts["gates"] = model.gates
    return [module for module in parts.values() if not _learns(module)]


def _learns(module: nn.Module) -> bool:
    answers = module.classifier if isinstance(module, Head) else module  # a head's ramp says nothing about the head
    return any(value.requires_grad for value in answers.parameters())


def _projected(model: AdaptiveModel) -> set[int]:
    """RomeBERT's projected parameters by identity: the weight matrices of all layers but the last."""
    family, config = model.config.family, model.config
    blocks = [family.block(model.backbone, index) for index in range(config.num_layers - 1)]
    return {id(value) for block in blocks for value in block.parameters() if value.dim() == 2}


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second
