"""Conversion of `Settings` to `transformers.TrainingArguments`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations

from offramp.errors import BadValue, UnknownName
from offramp.training.recipes import PublishedSettings
from offramp.training.settings import Settings

__all__ = ["make_training_arguments", "uses_cpu"]

# transformers 5.23 renamed the argument
CHECKPOINTING = next(
    name for name in ("activation_checkpointing", "gradient_checkpointing") if hasattr(TrainingArguments, name)
)
# the schedules of transformers that take no extra arguments and no metric
SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
)


def make_training_arguments(
    settings: Settings, published: PublishedSettings, folder: Path, epochs: float, selection_score: str | None
) -> TrainingArguments:
    """Return the arguments of a stage; settings that are None take the recipe's published values.

    `selection_score` is the metric that selects the best checkpoint; None keeps the last one.
    """
    if settings.schedule not in SCHEDULES:
        raise UnknownName("schedule", settings.schedule, SCHEDULES)

    def or_published(name: str) -> Any:
        value = getattr(settings, name)
        return getattr(published, name) if value is None else value

    if settings.early_stopping is not None and selection_score is None:
        raise BadValue("`early_stopping` needs a selection score; remove `select='none'`.")
    save_steps = settings.save_every or settings.eval_every
    # selecting a checkpoint needs its score
    eval_steps = settings.eval_every or (settings.save_every if selection_score else None)
    try:
        return TrainingArguments(
            output_dir=str(folder),
            run_name=folder.parent.parent.name,
            num_train_epochs=epochs,
            max_steps=settings.max_steps,
            per_device_train_batch_size=or_published("batch_size"),
            per_device_eval_batch_size=settings.eval_batch_size,
            gradient_accumulation_steps=settings.accumulation,
            learning_rate=or_published("learning_rate"),
            weight_decay=or_published("weight_decay"),
            adam_epsilon=settings.adam_epsilon,
            warmup_steps=or_published("warmup"),
            lr_scheduler_type=settings.schedule,
            max_grad_norm=settings.max_grad_norm,
            seed=settings.seed,
            eval_strategy="steps" if eval_steps else "epoch",
            eval_steps=eval_steps,
            save_strategy="steps" if save_steps else "epoch",
            save_steps=save_steps or 500,
            save_total_limit=None if settings.keep_checkpoints else 2,
            load_best_model_at_end=selection_score is not None,
            metric_for_best_model=selection_score,
            greater_is_better=True,
            bf16=settings.bf16,
            fp16=settings.fp16,
            **({CHECKPOINTING: True} if settings.gradient_checkpointing else {}),
            use_cpu=uses_cpu(settings),
            dataloader_pin_memory=not uses_cpu(settings),
            report_to=_check_report_to(settings.report_to),
            logging_steps=settings.log_every,
            logging_nan_inf_filter=False,
            restore_callback_states_from_checkpoint=True,  # early stopping continues its count
            disable_tqdm=True,
            remove_unused_columns=False,
        )
    except (ValueError, ImportError) as err:
        raise BadValue(f"Invalid training options: {str(err).splitlines()[0]}") from err


def uses_cpu(settings: Settings) -> bool:
    """Whether to train on the CPU: on request, or if there is no accelerator."""
    return settings.cpu or not torch.accelerator.is_available()


def _check_report_to(names: str) -> list[str]:
    """Return the names of the experiment trackers; raise if one is not installed."""
    trackers = names.split(",")
    available = get_available_reporting_integrations()
    if missing := [name for name in trackers if name != "none" and name not in available]:
        raise BadValue(
            f"`report_to` names {missing[0]!r}, which is unknown or not installed. "
            f"Available: {', '.join(['none', *available])}."
        )
    return trackers
