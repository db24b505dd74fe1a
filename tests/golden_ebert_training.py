"""EBERT's short training runs by the product's Trainer: two rates, one rate, frozen gates; noise and rows recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import TrainingArguments

from golden_case import Case, Check, close
from golden_ebert import add_labels, ours, relative, replay_noise, same_masks, set_width, take_logits, watched
from golden_training import GoldenTrainer, Rows, stack
from offramp import AdaptiveModel
from offramp.training.recipes import Stage, make_recipe
from offramp.training.trainer import LossSettings

__all__ = ["checks_of_ebert_training"]


class InOrder(Sampler[int]):
    """The recorded rows."""

    def __init__(self, rows: Tensor):
        self.rows = rows.flatten().tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class EbertTrainer(GoldenTrainer):
    """With the recorded rows and noise; keeps what each step's gates kept and at which rate it learnt."""

    rows: Tensor
    noise: tuple[Tensor, Tensor] | None = None
    steps: list[dict[str, Any]]

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        self.steps = []
        return InOrder(self.rows)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        if self.noise is not None:
            replay_noise(self.model, *(one[len(self.steps)] for one in self.noise))
        rate = self.optimizer.param_groups[0]["lr"]
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.steps.append({"lr": rate} | (self.width or {}))
        return loss


def checks_of_ebert_training(case: Case) -> Iterator[Check]:
    """Every run, each from the checkpoint."""
    add_labels(case)
    for name, run in case.about["runs"].items():
        if name.startswith("train/"):
            model = case.model(faithful=True)
            set_width(model, run)
            trainer = trained(case, name.removeprefix("train/"), run, model)
            yield from checks_of_run(case, name, trainer, model)


def trained(case: Case, name: str, run: dict[str, Any], model: AdaptiveModel) -> EbertTrainer:
    width = model.config.gating
    assert width is not None
    options = {"faithful": True, "target_ratio": width.target, "loss_lambda": float(run["loss_lambda"])}
    options |= {"head_mode": width.heads, "ffn_mode": width.channels, "predictor_lr": run["predictor_lr"]}
    recipe = make_recipe("ebert", options | {"freeze_predictor": True})
    _, both, frozen = recipe.stages(model.config, None)
    stage: Stage = frozen if run["freeze_predictor"] else both
    arguments = TrainingArguments(
        output_dir=str(case.scratch / name),
        num_train_epochs=1,
        per_device_train_batch_size=run["batch"],
        learning_rate=run["learning_rate"],
        weight_decay=run["weight_decay"],
        adam_epsilon=run["adam_epsilon"],
        warmup_steps=run["warmup_steps"],
        max_grad_norm=run["max_grad_norm"],
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=True,
    )
    data = Rows(case.batch | {"labels": case.inputs["labels"]}, len(case.inputs["labels"]))
    EbertTrainer.rows = case.inputs[f"train/{name}/rows"]
    recorded = [case.inputs.get(f"noise/train-{name}/{part}") for part in ("head", "ffn")]
    EbertTrainer.noise = None if recorded[0] is None or recorded[1] is None else (recorded[0], recorded[1])
    trainer = EbertTrainer(
        model,
        recipe,
        stage,
        LossSettings(group_by_length=False),
        args=arguments,
        train_dataset=data,
        data_collator=stack,
        callbacks=[],
    )
    trainer.train()
    return trainer


PARTS = {"flops": "width_flops_term", "head": "width_heads_term", "ffn": "width_channels_term"}
PARTS |= {"heads_kept": "width_heads", "ffn_kept": "width_channels", "lr": "lr"}


def checks_of_run(case: Case, name: str, trainer: EbertTrainer, model: AdaptiveModel) -> Iterator[Check]:
    if (wanted := case.take(f"{name}/loss")) is not None:
        yield close(f"{name}/loss", torch.tensor(trainer.losses), wanted.float())
    if (wanted := case.take(f"{name}/sparsity")) is not None:
        saved = [1 - step["width_ratio"] for step in trainer.steps]
        yield close(f"{name}/sparsity", torch.tensor(saved), wanted.float())
    for part, key in PARTS.items():
        if (wanted := case.take(f"{name}/{part}")) is not None:
            got = torch.tensor([step[key] for step in trainer.steps]).reshape(wanted.shape)
            yield relative(f"{name}/{part}", got.double(), wanted.double(), 1e-5)
    state, family, depth = model.state_dict(), case.about["family"], model.config.num_layers
    for key in sorted(one for one in case.expected if one.startswith(f"{name}/after/")):
        wanted = case.take(key)
        assert wanted is not None
        got = state[ours(key.removeprefix(f"{name}/after/"), family, depth)]
        most = float((got - wanted).abs().max())
        yield key, most <= 1e-3, f"off by {most:.1e}"
    model.eval()
    with torch.no_grad():
        logits, _, watch, _ = watched(model, case.batch)
    if (wanted := take_logits(case, f"{name}/after_")) is not None:
        yield close(f"{name}/after_logits", logits.reshape(wanted.shape), wanted)
    yield from same_masks(case, f"{name}/after_", watch)
