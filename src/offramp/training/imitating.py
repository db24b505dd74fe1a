"""The recipe `imitate` in a run: data that may have no labels, a model with new exits, heads trained from states."""

from __future__ import annotations

import tempfile
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from offramp.data.metrics import AGREEMENT
from offramp.data.reading import Source, columns_of, format_of, read_texts
from offramp.data.rows import task_of_model
from offramp.data.task import Rows, Task
from offramp.errors import BadInput, BadValue
from offramp.model.adaptive import AdaptiveModel
from offramp.model.attach import ExitOptions
from offramp.training.imitation.heads import ImitationOptions, imitate
from offramp.training.imitation.original import with_new_exits
from offramp.training.imitation.states import record_states
from offramp.training.imitation.teacher import logits_of_model, whole_model
from offramp.training.recipes import Recipe
from offramp.training.recipes.imitate import Imitate
from offramp.training.settings import Settings

__all__ = ["imitated_model", "run_from_states", "unlabelled"]

UNUSED = {  # options of the library's loop
    *("max_steps", "accumulation", "schedule", "max_grad_norm", "adam_epsilon", "label_smoothing", "class_weights"),
    *("group_by_length", "select", "early_stopping", "eval_every", "save_every", "bf16", "fp16"),
    "gradient_checkpointing",
}


def imitated_model(settings: Settings) -> AdaptiveModel:
    """The fine-tuned model with new exits; its last one stays."""
    for one in fields(Settings):
        if one.name in UNUSED and getattr(settings, one.name) != one.default:
            raise BadValue(f"Recipe imitate has a loop of its own; leave `{one.name}=` out.")
    heads = "attention" if settings.heads == "auto" else settings.heads
    if settings.pooling not in ("auto", "queries"):
        raise BadValue("Recipe imitate chooses what its heads read; leave `pooling=` out.")
    if settings.num_layers is not None or settings.fresh_head:
        raise BadValue("Recipe imitate keeps the model whole; leave `num_layers=` and `fresh_head=` out.")
    asked = ExitOptions(settings.exits, heads, queries=settings.queries, query_width=settings.query_width)
    return with_new_exits(settings.backbone, asked)


def unlabelled(settings: Settings, recipe: Recipe) -> tuple[Task, Rows, dict[str, Rows]] | None:
    """Files without labels, the teacher's answers in their place; None: there are labels, or a known task.

    Scores on dev are then agreement with the teacher.
    """
    if not isinstance(recipe, Imitate) or settings.task or not settings.train_file or not settings.dev_file:
        return None
    files = {"train": settings.train_file, "dev": settings.dev_file}
    if any(_has_labels(file, settings) for file in files.values()):
        return None
    model = whole_model(recipe.teacher or settings.backbone)
    config = model.config
    texts = {split: list(read_texts(_source(file, settings))) for split, file in files.items()}
    if not all(texts.values()):
        raise BadInput(f"{files['train'] if not texts['train'] else files['dev']} holds no text.")
    metrics = (AGREEMENT,) if config.answer_type.has_labels else (config.answer_type.metric,)
    task = task_of_model(config, metrics, _inputs(texts["train"], settings))
    rows = {}
    for split, some in texts.items():
        answers = model.runner().answer(some, policy="never").values
        rows[split] = Rows(some, answers.tolist())
    return task, rows["train"], {"dev": rows["dev"]}


def _source(file: str, settings: Settings) -> Source:
    return Source(file, format_of(file), settings.text_column, settings.pair_column)


def _has_labels(file: str, settings: Settings) -> bool:
    return settings.label_column is not None or "label" in (columns_of(_source(file, settings)) or [])


def _inputs(texts: list[Any], settings: Settings) -> tuple[str, ...]:
    if isinstance(texts[0], str):
        return (settings.text_column or "text",)
    return (settings.text_column or "text", settings.pair_column or "pair")


def run_from_states(
    model: AdaptiveModel, recipe: Recipe, rows: Rows, settings: Settings, epochs: float, place: Path
) -> dict[str, Any]:
    """Train the early heads; what a stage tells in the end."""
    assert isinstance(recipe, Imitate)
    usual, began = recipe.published, time.time()
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        states = record_states(model, rows.texts, Path(folder))
        if recipe.teacher:
            logits = logits_of_model(recipe.teacher, model.config, rows.texts)[0]
            states = states.taught_by(torch.from_numpy(np.ascontiguousarray(logits[states.rows])))
        labels = None if rows.labels is None else torch.as_tensor(np.asarray(rows.labels))[states.rows]
        warmup = usual.warmup if settings.warmup is None else settings.warmup
        size = settings.batch_size or usual.batch_size
        updates = max(1, int(np.ceil(epochs * len(rows) / size)))
        options = ImitationOptions(
            epochs,
            batch_size=size,
            learning_rate=settings.head_learning_rate or settings.learning_rate or usual.learning_rate,
            weight_decay=usual.weight_decay if settings.weight_decay is None else settings.weight_decay,
            warmup=warmup if warmup < 1 else warmup / updates,
            seed=settings.seed,
        )
        heads = [model.exits.at(point) for point in model.exits.points[:-1]]
        with tqdm(total=100, unit=" %", desc="exits", delay=2, leave=False, disable=None) as bar:

            def tell(share: float, loss: float) -> None:
                bar.update(int(100 * share) - bar.n)

            imitate(heads, states, model.config.answer_type, options, tell, labels, recipe.label_weight)
    return {"updates": updates, "seconds": round(time.time() - began, 1), "resumed": False, "history": []}
