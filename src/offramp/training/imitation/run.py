"""The recipe `imitate` in a training run: unlabelled data, a model with new exits, and heads trained on states."""

from __future__ import annotations

import tempfile
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offramp.data.metrics import AGREEMENT
from offramp.data.reading import Source, infer_format, read_column_names, read_texts
from offramp.data.rows import model_task
from offramp.data.tagged import is_tagged
from offramp.data.task import Rows, Task
from offramp.errors import BadInput, BadValue
from offramp.model.adaptive import AdaptiveModel
from offramp.model.attach import ExitOptions
from offramp.training.imitation.heads import ImitationOptions, imitate
from offramp.training.imitation.new_exits import load_with_new_exits
from offramp.training.imitation.states import record_states
from offramp.training.imitation.teacher import full_model_logits, load_full_model
from offramp.training.recipes import Recipe
from offramp.training.recipes.imitate import Imitate
from offramp.training.settings import Settings

__all__ = ["build_imitation_model", "read_unlabelled", "train_from_states"]

UNSUPPORTED = {  # options of `transformers.Trainer`, which this recipe does not use
    *("max_steps", "accumulation", "schedule", "max_grad_norm", "adam_epsilon", "label_smoothing", "class_weights"),
    *("group_by_length", "select", "early_stopping", "eval_every", "save_every", "bf16", "fp16"),
    "gradient_checkpointing",
}


def build_imitation_model(settings: Settings) -> AdaptiveModel:
    """Return the fine-tuned model with new early exits; its last exit stays unchanged."""
    for setting in fields(Settings):
        if setting.name in UNSUPPORTED and getattr(settings, setting.name) != setting.default:
            raise BadValue(f"Recipe imitate does not support `{setting.name}=`; remove it.")
    heads = "attention" if settings.heads == "auto" else settings.heads
    if settings.pooling not in ("auto", "queries"):
        raise BadValue("Recipe imitate does not support `pooling=`; remove it.")
    if settings.num_layers is not None or settings.fresh_head:
        raise BadValue("Recipe imitate uses the full model; remove `num_layers=` and `fresh_head=`.")
    options = ExitOptions(
        settings.exits,
        heads,
        queries=settings.queries,
        query_width=settings.query_width,
        convolution=settings.convolution,
    )
    return load_with_new_exits(settings.backbone, options)


def read_unlabelled(settings: Settings, recipe: Recipe) -> tuple[Task, Rows, dict[str, Rows]] | None:
    """Return files without labels as a task, with the teacher's predictions as labels.

    Dev scores are then the agreement with the teacher. Returns None for labelled data and benchmark tasks.
    """
    if not isinstance(recipe, Imitate) or settings.task or not settings.train_file or not settings.dev_file:
        return None
    files = {"train": settings.train_file, "dev": settings.dev_file}
    if any(_has_labels(file, settings) for file in files.values()):
        return None
    model = load_full_model(recipe.teacher or settings.backbone)
    config = model.config
    texts = {split: list(read_texts(_source(file, settings))) for split, file in files.items()}
    if not all(texts.values()):
        raise BadInput(f"{files['train'] if not texts['train'] else files['dev']} contains no texts.")
    metrics = (AGREEMENT,) if config.answer_type.has_labels else (config.answer_type.metric,)
    task = model_task(config, metrics, _inputs(texts["train"], settings))
    rows = {}
    for split, split_texts in texts.items():
        predictions = model.runner().answer(split_texts, policy="never").values
        rows[split] = Rows(split_texts, predictions.tolist())
    return task, rows["train"], {"dev": rows["dev"]}


def _source(file: str, settings: Settings) -> Source:
    return Source(file, infer_format(file), settings.text_column, settings.pair_column)


def _has_labels(file: str, settings: Settings) -> bool:
    if is_tagged(_source(file, settings)):
        return True
    return settings.label_column is not None or "label" in (read_column_names(_source(file, settings)) or [])


def _inputs(texts: list[Any], settings: Settings) -> tuple[str, ...]:
    if isinstance(texts[0], str):
        return (settings.text_column or "text",)
    return (settings.text_column or "text", settings.pair_column or "pair")


def train_from_states(
    model: AdaptiveModel, recipe: Recipe, rows: Rows, settings: Settings, epochs: float, folder: Path
) -> dict[str, Any]:
    """Train the early exits' heads; return the stage's entry for scores.json. `folder` holds temporary files."""
    assert isinstance(recipe, Imitate)
    published, start = recipe.published, time.time()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as states_folder:
        states = record_states(model, rows.texts, Path(states_folder))
        if model.config.answer_type.per_token and (recipe.teacher or recipe.label_weight):
            title = model.config.answer_type.title.capitalize()
            raise BadValue(f"{title} imitates the model itself; remove `teacher=` and `label_weight=`.")
        if recipe.teacher:
            logits = full_model_logits(recipe.teacher, model.config, rows.texts)[0]
            states = states.with_teacher(torch.from_numpy(np.ascontiguousarray(logits[states.rows])))
        has_labels = rows.labels is not None and not model.config.answer_type.per_token
        labels = None if not has_labels else torch.as_tensor(np.asarray(rows.labels))[states.rows]
        warmup = published.warmup if settings.warmup is None else settings.warmup
        batch_size = settings.batch_size or published.batch_size
        updates = max(1, int(np.ceil(epochs * len(rows) / batch_size)))
        options = ImitationOptions(
            epochs,
            batch_size=batch_size,
            learning_rate=settings.head_learning_rate or settings.learning_rate or published.learning_rate,
            weight_decay=published.weight_decay if settings.weight_decay is None else settings.weight_decay,
            warmup=warmup if warmup < 1 else warmup / updates,
            seed=settings.seed,
        )
        heads = [model.exits.at(point) for point in model.exits.points[:-1]]
        imitate(heads, states, model.config.answer_type, options, labels=labels, label_weight=recipe.label_weight)
    return {"updates": updates, "seconds": round(time.time() - start, 1), "resumed": False, "history": []}
