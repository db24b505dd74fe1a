"""A `transformers.Trainer` with exit losses, frozen modules and projected gradients."""

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
from offramp.originals.width.flops import WidthLoss, layer_flops, width_loss
from offramp.training.examples import LengthGroupedSampler
from offramp.training.recipes import Recipe, Stage
from offramp.training.recipes.losses import BatchOutputs
from offramp.training.recipes.projection import Projection, project

__all__ = ["ExitTrainer", "LossSettings"]

# minimum learning rate of linear and attention heads: at the encoder's rate they lag behind (docs/results/quality.md)
HEAD_LEARNING_RATE = 1e-3
REDUCED = (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.MULTI_XPU, DistributedType.MULTI_NPU)


@dataclass(frozen=True)
class LossSettings:
    """Loss weights, the heads' learning rate, and batching by length."""

    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0
    head_learning_rate: float | None = None
    group_by_length: bool = True


class ExitTrainer(Trainer):
    """Trainer of one stage of a recipe.

    The loss is a function of the outputs of all exits. Gradients of several processes are averaged here and not in
    DDP's reducer: which exits take part depends on the recipe and the batch, and RomeBERT's projection needs two
    gradients per batch, each averaged before they are combined.
    """

    optimizer: Any
    lr_scheduler: Any

    def __init__(self, model: AdaptiveModel, recipe: Recipe, stage: Stage, loss_settings: LossSettings, **options: Any):
        self.stage, self.recipe, self.loss_settings = stage, recipe, loss_settings
        self.frozen = _freeze(model, stage)
        self.projected = _projected_parameters(model) if stage.loss_parts is not None else []
        specs = model.config.exit_specs
        linear = [f"exits.{spec.layer}.classifier." for spec in specs if spec.head == "linear"]
        attention = [f"exits.{spec.layer}." for spec in specs if spec.head == "attention"]
        self.fast_prefixes = (*linear, *attention, "exits.lte.")  # trained at HEAD_LEARNING_RATE or more
        self.projection: Projection | None = None  # of the last batch
        self._accumulated = 0  # batches since the last update
        model.gradient_equilibrium = stage.equilibrium
        model.gates_are_open = stage.gates == "open"
        self.width: dict[str, Any] | None = None  # log entries of the gates for the last batch
        options["args"]._n_gpu = min(1, options["args"].n_gpu)  # several GPUs: torchrun, not DataParallel
        super().__init__(model=model, **options)
        self.model_accepts_loss_kwargs = False
        if stage.loss_parts is not None and self.accelerator.distributed_type not in (DistributedType.NO, *REDUCED):
            raise BadValue(f"Recipe {recipe.name} does not support FSDP or DeepSpeed: it needs unsharded gradients.")

    # -- loss ------------------------------------------------------------------------------------

    def outputs(self, model: nn.Module, inputs: Mapping[str, Any]) -> BatchOutputs:
        """Run a forward pass in training mode; return the outputs of every exit with the labels."""
        batch = {key: value for key, value in inputs.items() if key != "labels"}
        trained = self.model.trained_exits(model(**batch).exits)
        weights = self.loss_settings.class_weights
        return BatchOutputs(
            [output.raw for output in trained],
            inputs["labels"],
            self.model.config.answer_type,
            [output.uncertainty for output in trained if output.uncertainty is not None],
            None if weights is None else torch.tensor(weights, device=trained[0].logits.device),
            self.loss_settings.label_smoothing,
            self._gate_terms(trained[-1].kept, inputs),
        )

    def _gate_terms(self, kept: Tensor | None, inputs: Mapping[str, Any]) -> WidthLoss | None:
        """Return the loss terms of the gates, and store them for the log."""
        width = self.model.config.gating
        if kept is None or width is None:
            return None
        real = inputs["attention_mask"].sum(1)
        lengths = max(width.pad_to or 0, inputs["input_ids"].shape[1]) if width.flops == "original" else real
        loss_terms = width_loss(kept, lengths, layer_flops(self.model.config), width.prune)
        heads, channels = kept.detach().mean(0).T.tolist()
        self.width = {
            "width_ratio": 1 - loss_terms.sparsity.item(),
            "width_flops_term": loss_terms.flops.item(),
            "width_heads_term": loss_terms.heads.item(),
            "width_channels_term": loss_terms.channels.item(),
            "width_heads": heads,  # kept per layer, averaged over the batch
            "width_channels": channels,
        }
        return loss_terms

    def step_in_epoch(self) -> int:
        """Return the index of this batch in its epoch, from 0; also correct after resuming."""
        updates = self.state.global_step % self.updates_per_epoch
        return updates * self.args.gradient_accumulation_steps + self._accumulated

    @property
    def updates_per_epoch(self) -> int:
        """Batches divided by accumulation steps, rounded up."""
        return -(-len(self.callback_handler.train_dataloader) // self.args.gradient_accumulation_steps)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward for one batch; gradients are averaged over processes before the optimizer step."""
        model.train()
        for module in self.frozen:
            module.eval()
        inputs = self._prepare_inputs(inputs)
        scale = 1 / self.current_gradient_accumulation_steps
        with self._no_ddp_reduction(model):
            with self.compute_loss_context_manager():
                outputs = self.outputs(model, inputs)
                if self.stage.loss_parts is not None:
                    reference, other = (part * scale for part in self.stage.loss_parts(outputs))
                else:
                    loss = self.stage.loss(outputs, self.step_in_epoch()) * scale
            if self.stage.loss_parts is not None:
                self._project(reference, other)
                loss = reference + other
            else:
                self.accelerator.backward(loss)
        self._accumulated += 1
        if self.accelerator.sync_gradients:
            self._accumulated = 0
            if self.stage.loss_parts is None and self._reduces:
                self._average([value.grad for value in self.model.parameters() if value.grad is not None])
        return loss.detach()

    def _project(self, reference: Tensor, other: Tensor) -> None:
        """Run two backward passes, average each over processes, and combine them on the projected parameters.

        With accumulation the reference includes the combined gradients of earlier batches, as in the original.
        """
        parameters = [value for value in self.model.parameters() if value.requires_grad]
        before = [value.grad for value in parameters]
        gradients: list[list[Tensor | None]] = []
        for loss in (reference, other):
            for value in parameters:
                value.grad = None
            self.accelerator.backward(loss, retain_graph=loss is reference)
            gradients.append([value.grad for value in parameters])
            if self._reduces:
                self._average([gradient for gradient in gradients[-1] if gradient is not None])
        first = [_sum(old, new) for old, new in zip(before, gradients[0], strict=True)]
        second = gradients[1]
        indices = [index for index, value in enumerate(parameters) if id(value) in self.projected]
        pairs = [(index, first[index], second[index]) for index in indices]
        complete = [(index, a, b) for index, a, b in pairs if a is not None and b is not None]
        projected, self.projection = project([a for _, a, _ in complete], [b for _, _, b in complete])
        combined = {index: gradient for (index, _, _), gradient in zip(complete, projected, strict=True)}
        for index, value in enumerate(parameters):
            value.grad = combined[index] if index in combined else _sum(first[index], second[index])

    # -- several processes -----------------------------------------------------------------------

    @property
    def _reduces(self) -> bool:
        return self.accelerator.distributed_type in REDUCED

    @contextlib.contextmanager
    def _no_ddp_reduction(self, model: nn.Module) -> Iterator[None]:
        with self.accelerator.no_sync(model) if self._reduces else contextlib.nullcontext():
            yield

    def _average(self, gradients: list[Tensor]) -> None:
        for gradient in gradients:
            torch.distributed.all_reduce(gradient)
            gradient /= self.accelerator.num_processes

    # -- optimizer, schedule, sampler ------------------------------------------------------------

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Follow transformers; with `faithful`, the originals (all but `bias` and `LayerNorm.weight`)."""
        if not self.recipe.faithful:
            return super().get_decay_parameter_names(model)
        names = [name for name, _ in model.named_parameters()]
        return [name for name in names if "bias" not in name and "LayerNorm.weight" not in name]

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimizer with parameter groups by weight decay and learning rate."""
        if self.optimizer is None:
            optimizer_class, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            self.optimizer = optimizer_class(self.parameter_groups(self.model if model is None else model), **options)
        return self.optimizer

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return the optimizer's parameter groups: the parameters that the stage trains."""
        decayed = set(self.get_decay_parameter_names(model))
        groups: dict[tuple[float, float, bool], dict[str, Any]] = {}
        for name, value in model.named_parameters():
            name = name.removeprefix("module.")
            if not value.requires_grad or not self.stage.trains(name):
                continue
            gate_rate = self.recipe.gate_learning_rate(self.args.learning_rate) if name.startswith("gates.") else None
            is_constant = gate_rate is not None
            rate = self._learning_rate(name) if gate_rate is None else gate_rate
            decay = self.args.weight_decay if name in decayed and not is_constant else 0.0
            new: dict[str, Any] = {"params": [], "lr": rate, "weight_decay": decay, "constant": is_constant}
            groups.setdefault((rate, decay, is_constant), new)["params"].append(value)
        return list(groups.values())

    def _learning_rate(self, name: str) -> float:
        """Return a parameter's learning rate; heads may have a separate one."""
        rate, head_rate = self.args.learning_rate, self.loss_settings.head_learning_rate
        if not name.startswith("exits."):
            return rate
        if head_rate is not None:
            return head_rate
        is_fast = name.startswith(self.fast_prefixes) and not self.recipe.faithful
        return max(rate, HEAD_LEARNING_RATE) if is_fast else rate

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the schedule as transformers does, but do not round a fractional warm-up to full steps."""
        if self.lr_scheduler is None:
            warmup = self.args.warmup_steps
            self.lr_scheduler = get_scheduler(
                self.args.lr_scheduler_type,
                optimizer=self.optimizer if optimizer is None else optimizer,
                num_warmup_steps=warmup if warmup >= 1 else warmup * num_training_steps,
                num_training_steps=num_training_steps,
            )
            _keep_constant_rates(self.lr_scheduler)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        data: Any = self.train_dataset if train_dataset is None else train_dataset
        batch = self.args.train_batch_size * self.args.world_size
        lengths = data.lengths if self.loss_settings.group_by_length else None
        sampler = LengthGroupedSampler(len(data), self.args.seed, batch, lengths)
        self.add_callback(EpochCallback(self, sampler))
        return sampler

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Return the rows sorted by length, longest first, to reduce padding."""
        return np.argsort(-eval_dataset.lengths, kind="stable").tolist()

    # -- dev, logs, checkpoints ------------------------------------------------------------------

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the logits of every exit, (rows, exits, classes)."""
        inputs = self._prepare_inputs(inputs)
        batch = {key: value for key, value in inputs.items() if key != "labels"}
        with torch.no_grad(), self.compute_loss_context_manager():
            out = model(**batch, policy="never", output_exits=True)
        trained = [index for index, point in enumerate(self.model.exits.points) if not point.is_ramp]
        return None, out.exit_logits[:, trained].float(), inputs.get("labels")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the projection's angle and norms and the gates' loss terms, if any, to the log."""
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
            shutil.rmtree(folder, ignore_errors=True)  # incomplete, and the disk is full
            raise


def _keep_constant_rates(schedule: Any) -> None:
    """Exclude the parameter groups marked as constant from the schedule."""
    groups = schedule.optimizer.param_groups
    for index, group in enumerate(groups):
        if not group.get("constant"):
            continue
        if not hasattr(schedule, "lr_lambdas"):
            raise BadValue(
                "The gates need a constant learning rate, which this schedule does not support; "
                "use `schedule='linear'`, cosine or constant."
            )
        schedule.lr_lambdas[index] = _constant_factor
        group["lr"] = schedule._last_lr[index] = schedule.base_lrs[index]


def _constant_factor(step: int) -> float:
    return 1.0


class EpochCallback(TrainerCallback):
    """Sets the sampler's epoch; transformers does not do so in a resumed epoch."""

    def __init__(self, trainer: ExitTrainer, sampler: LengthGroupedSampler):
        self.trainer, self.sampler = trainer, sampler

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Compute the epoch from the number of updates, which is exact in a checkpoint."""
        self.sampler.set_epoch(state.global_step // self.trainer.updates_per_epoch)


def _freeze(model: AdaptiveModel, stage: Stage) -> list[nn.Module]:
    """Disable gradients of parameters that the stage freezes; return the modules to keep in evaluation mode."""
    for name, value in model.named_parameters():
        value.requires_grad_(not stage.freeze_others or stage.trains(name))
    if not stage.freeze_others:
        return []
    modules: list[nn.Module] = [model.backbone, *model.exits.values()]
    if model.gates is not None and stage.gates != "live":
        modules.append(model.gates)
    return [module for module in modules if not _is_trained(module)]


def _is_trained(module: nn.Module) -> bool:
    module = module.classifier if isinstance(module, Head) else module  # a head's ramp may be trained without it
    return any(value.requires_grad for value in module.parameters())


def _projected_parameters(model: AdaptiveModel) -> set[int]:
    """Return the ids of RomeBERT's projected parameters: the weight matrices of all layers but the last."""
    family, config = model.config.family, model.config
    blocks = [family.block(model.backbone, index) for index in range(config.num_layers - 1)]
    return {id(value) for block in blocks for value in block.parameters() if value.dim() == 2}


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second
