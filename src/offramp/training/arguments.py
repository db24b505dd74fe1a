"""Our settings as `transformers.TrainingArguments`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations

from offramp.errors import BadValue, UnknownName
from offramp.training.recipes import Published
from offramp.training.settings import Settings

__all__ = ["library_arguments", "on_cpu"]

# those of the library that need no numbers of their own, and no score to watch
SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
)


def library_arguments(
    settings: Settings, published: Published, place: Path, epochs: float, selection_score: str | None
) -> TrainingArguments:
    """What is not given is what the recipe's authors used; `selection_score` is the score that chooses the checkpoint."""
    if settings.schedule not in SCHEDULES:
        raise UnknownName("schedule", settings.schedule, SCHEDULES)

    def or_published(name: str) -> Any:
        given = getattr(settings, name)
        return getattr(published, name) if given is None else given

    if settings.early_stopping is not None and selection_score is None:
        raise BadValue("early-stopping needs a score to watch; leave `select='none'` out.")
    saving = settings.save_every or settings.eval_every
    judging = settings.eval_every or (
        settings.save_every if selection_score else None
    )  # a checkpoint is chosen by its score
    try:
        return TrainingArguments(
            output_dir=str(place),
            run_name=place.parent.parent.name,
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
            eval_strategy="steps" if judging else "epoch",
            eval_steps=judging,
            save_strategy="steps" if saving else "epoch",
            save_steps=saving or 500,
            save_total_limit=None if settings.keep_checkpoints else 2,
            load_best_model_at_end=selection_score is not None,
            metric_for_best_model=selection_score,
            greater_is_better=True,
            bf16=settings.bf16,
            fp16=settings.fp16,
            gradient_checkpointing=settings.gradient_checkpointing,
            use_cpu=on_cpu(settings),
            dataloader_pin_memory=not on_cpu(settings),
            report_to=_reports(settings.report_to),
            logging_steps=settings.log_every,
            logging_nan_inf_filter=False,
            restore_callback_states_from_checkpoint=True,  # early stopping goes on counting
            disable_tqdm=True,
            remove_unused_columns=False,
        )
    except (ValueError, ImportError) as err:
        raise BadValue(f"The training library refuses the options: {str(err).splitlines()[0]}") from err


def on_cpu(settings: Settings) -> bool:
    """Whether there is nothing better, or nothing better is wanted."""
    return settings.cpu or not torch.accelerator.is_available()


def _reports(written: str) -> list[str]:
    """Where the history goes besides; a service whose library is missing is refused."""
    wanted = written.split(",")
    there = get_available_reporting_integrations()
    if missing := [name for name in wanted if name != "none" and name not in there]:
        raise BadValue(f"Nothing can be reported to {missing[0]!r} here; there are {', '.join(['none', *there])}.")
    return wanted
