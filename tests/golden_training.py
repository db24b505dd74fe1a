"""The short training runs of a golden case, made by the product's Trainer.

Fixtures, because nobody should want them in a product: the originals' AdamW (epsilon outside the bias correction, decay
after the step), a `zero_grad` that fills with zeros where their torch did, rows in order.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import TrainingArguments

from golden_case import Case, Check, close
from offramp import AdaptiveModel
from offramp.originals.convert import detect
from offramp.originals.convert.checkpoint import ConvertOptions
from offramp.training.recipes import Recipe, Stage, make_recipe
from offramp.training.trainer import ExitTrainer, LossSettings

__all__ = ["REMAINDER", "checks_of_training", "names_in_checkpoint"]

# a difference that docs/explanation/decisions.md declares
REMAINDER = "batches left at an epoch's end are an update of their own; the original's leak into the next epoch"


class EraAdamW(torch.optim.Optimizer):
    """AdamW as transformers 2 to 4 had it."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for value in group["params"]:
                if value.grad is None:
                    continue
                state = self.state[value]
                if not state:
                    state |= {"step": 0, "m": torch.zeros_like(value), "v": torch.zeros_like(value)}
                state["step"] += 1
                state["m"].mul_(first).add_(value.grad, alpha=1 - first)
                state["v"].mul_(second).addcmul_(value.grad, value.grad, value=1 - second)
                bias = math.sqrt(1 - second ** state["step"]) / (1 - first ** state["step"])
                value.addcdiv_(state["m"], state["v"].sqrt().add_(group["eps"]), value=-group["lr"] * bias)
                value.add_(value, alpha=-group["lr"] * group["weight_decay"])


class Rows(Dataset[dict[str, Tensor]]):
    """A case's inputs, row by row."""

    def __init__(self, inputs: dict[str, Tensor], rows: int):
        self.inputs, self.rows = inputs, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {key: value[index] for key, value in self.inputs.items()}


def stack(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch."""
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


class GoldenTrainer(ExitTrainer):
    """The product's Trainer with the fixtures; keeps each batch's loss and each update's angle."""

    losses: list[float]
    angles: list[float]

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            betas = (self.args.adam_beta1, self.args.adam_beta2)
            groups = self.parameter_groups(self.model)
            self.optimizer = EraAdamW(groups, self.args.learning_rate, betas, self.args.adam_epsilon)
            self.losses, self.angles = [], []
        return self.optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return SequentialSampler(self.train_dataset)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.losses.append(float(loss) * self.current_gradient_accumulation_steps)
        if self.projection is not None and self.accelerator.sync_gradients:
            self.angles.append(self.projection.angle)
        return loss


def checks_of_training(case: Case) -> Iterator[Check]:
    """Every training run of the case, stage 2 behind stage 1, but for those that offramp means to do differently."""
    model, differs = None, False
    for name, run in case.about["runs"].items():
        if not name.startswith("train/"):
            continue
        differs = leaves_remainder(case, run) or (differs and "start" in run)  # so does what starts from its end
        if differs:
            case.differs[f"{name}/"] = REMAINDER
            continue
        if model is None or "start" not in run:
            model = case.model()
        before = {key: value.detach().clone() for key, value in model.named_parameters()}
        trainer = trained(model, *chosen(case, name.removeprefix("train/"), run), run, case)
        yield from checks_of_run(case, name, model, before, trainer)


def leaves_remainder(case: Case, run: dict[str, Any]) -> bool:
    """Whether the last batches of an epoch do not fill an update."""
    return math.ceil(rows_of(case, run) / batch_of(run)) % accumulation_of(run) > 0


def rows_of(case: Case, run: dict[str, Any]) -> int:
    return int(run.get("rows", len(case.inputs["labels"])))


def batch_of(run: dict[str, Any]) -> int:
    return int(run.get("batch_size") or run["batch"])


def accumulation_of(run: dict[str, Any]) -> int:
    return int(run.get("gradient_accumulation_steps", 1))


def chosen(case: Case, name: str, run: dict[str, Any]) -> tuple[Recipe, int]:
    """The recipe of a run, and which of its stages."""
    options = {key: run[key] for key in ("gamma", "temperature") if key in run} | {"faithful": True}
    kind = case.about["kind"]
    if kind == "deebert":
        return make_recipe("deebert-sd" if "gamma" in run else "deebert", options), int(name.removeprefix("stage")) - 1
    if kind == "romebert":
        if "gr" not in run:
            return make_recipe("romebert-sd", options), 0
        return make_recipe("romebert-sd-gr", options | {"reference": run["gr"].split()[-1]}), 0
    if kind == "berxit":
        recipes = {
            "all": "joint",
            "alternate": "berxit-alternating",
            "alternate-lte": "berxit-lte",
            "self_distil": "self-distillation",
            "weight-linear": "pabee",
            "raw": "deebert",
        }
        return make_recipe(recipes[run["strategy"]], options), 0
    return make_recipe("static" if name == "static" else kind, options), 0


def trained(model: AdaptiveModel, recipe: Recipe, number: int, run: dict[str, Any], case: Case) -> GoldenTrainer:
    """Run one stage with the settings of the case."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if "None" not in run.get("zero_grad", ""):
        zero = type(model).zero_grad
        model.zero_grad = lambda set_to_none=True: zero(model, set_to_none=False)
    stage: Stage = recipe.stages(model.config, None)[number]
    warmup = run.get("warmup_steps") or run.get("warmup_rate", 0.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=run["epochs"],
            per_device_train_batch_size=batch_of(run),
            gradient_accumulation_steps=accumulation_of(run),
            learning_rate=run.get("learning_rate") or run["lr"],
            weight_decay=run["weight_decay"],
            adam_epsilon=run["adam_epsilon"],
            warmup_steps=warmup,
            max_grad_norm=run["max_grad_norm"],
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            use_cpu=True,
        )
        data = Rows(case.batch | {"labels": case.inputs["labels"]}, rows_of(case, run))
        loss_settings = LossSettings(group_by_length=False)
        trainer = GoldenTrainer(
            model, recipe, stage, loss_settings, args=arguments, train_dataset=data, data_collator=stack, callbacks=[]
        )
        trainer.train()
    return trainer


def names_in_checkpoint(case: Case) -> dict[str, str]:
    """Our parameters' names by the names that they have in the original's checkpoint."""
    checkpoint = case.checkpoint
    converted = detect(checkpoint).convert(checkpoint, ConvertOptions())
    original = {id(value): key for key, value in checkpoint.weights.items() if not key.startswith("core.")}
    return {original[id(value)]: key for key, value in converted.weights.items() if id(value) in original}


def checks_of_run(
    case: Case, name: str, model: AdaptiveModel, before: dict[str, Tensor], trainer: GoldenTrainer
) -> Iterator[Check]:
    """Losses, angles, weights after, and how far each parameter moved."""
    if (wanted := case.take(f"{name}/loss")) is not None:
        yield close(f"{name}/loss", torch.tensor(trainer.losses), wanted.float())
    if (wanted := case.take(f"{name}/angle")) is not None:
        degrees = float((torch.tensor(trainer.angles) - wanted).abs().max())
        yield f"{name}/angle", degrees < 0.05, f"off by {degrees:.1e} degrees"
    ours, places = dict(model.named_parameters()), names_in_checkpoint(case)
    allowed = {"elasticbert": 1e-3, "pabee": 2e-4}.get(case.about["kind"], 1e-4)
    for key in sorted(case.expected):
        if key.startswith(f"{name}/after/"):
            wanted = case.take(key)
            assert wanted is not None
            after = ours[places[key.removeprefix(f"{name}/after/")]].detach()
            most = float((after - wanted).abs().max())
            yield key, most <= allowed, f"off by {most:.1e}"
    if (wanted := case.take(f"{name}/moved")) is not None:
        known = [(index, places[key]) for index, key in enumerate(case.about["parameters"]) if places.get(key) in ours]
        got = torch.tensor([float((ours[key].detach() - before[key]).norm()) for _, key in known])
        asked = wanted[[index for index, _ in known]].float()
        off = (got - asked).abs()
        fits = bool((off <= 1e-2 * asked.abs() + 2e-3).all())
        yield f"{name}/moved of {len(known)} parameters", fits, f"off by {float(off.max()):.1e}"
