"""`train(settings)`: read the data, build the model, run the stages of the recipe, write the model folder."""

from __future__ import annotations

import gc
import json
import logging
import shutil
import time
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate import PartialState
from transformers import (
    AutoConfig,
    EarlyStoppingCallback,
    PrinterCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ProgressCallback

import offramp
from offramp.data.custom_task import describe_rows
from offramp.data.hashes import hash_texts, normalizer
from offramp.errors import BadValue
from offramp.files.writing import writing
from offramp.model.adaptive import AdaptiveModel
from offramp.training import card, folder, holdout
from offramp.training.arguments import make_training_arguments, uses_cpu
from offramp.training.data import Data, Tables, read_data, reorder_labels, warn_about_overlap
from offramp.training.examples import Examples, Padder, encode_all
from offramp.training.imitation.run import read_unlabelled, train_from_states
from offramp.training.lock import lock_folder
from offramp.training.model import build_model
from offramp.training.progress import Progress
from offramp.training.recipes import Recipe, Stage, check_recipe, make_recipe
from offramp.training.recipes.imitate import Imitate
from offramp.training.results import SCORES, TrainResult, read_result
from offramp.training.scores import flatten_scores, score_exits
from offramp.training.settings import Settings
from offramp.training.trainer import ExitTrainer, LossSettings

__all__ = ["TrainingRun", "close_process_group", "train"]

logger = logging.getLogger("offramp")

RELEASE_SECONDS = 0.1  # in which gloo's threads release their tensors


def train(
    settings: Settings, *, resume: bool = False, overwrite: bool = False, tables: Tables | None = None
) -> TrainResult:
    """Train a model, from the start or, with `resume`, from the last checkpoint."""
    settings = settings.absolute()
    # without a GPU, processes find each other only if the CPU is requested explicitly
    processes = PartialState(cpu=uses_cpu(settings))
    folder.check_output_path(settings)
    with lock_folder(Path(settings.output)):
        return _train(settings, processes, resume, overwrite, tables)


def _train(
    settings: Settings, processes: PartialState, resume: bool, overwrite: bool, tables: Tables | None
) -> TrainResult:
    output = Path(settings.output)
    folder.check_output_folder(settings, resume, overwrite, processes.num_processes)
    if resume and folder.is_finished(output):
        logger.info("The run in %s is finished; there is nothing to resume.", output)
        return read_result(output)
    recipe = make_recipe(settings.recipe, settings.recipe_options)
    data = read_data(settings, read_unlabelled(settings, recipe), tables)
    set_seed(settings.seed)
    model = build_model(settings, recipe, data.task)
    if (width := recipe.width()) is not None:
        model.add_gates(width)
    data = reorder_labels(data, model.config.labels)
    check_recipe(recipe, model.config)
    run = TrainingRun(settings, recipe, model, data)
    processes.wait_for_everyone()
    if processes.is_main_process:
        held_out = f", {len(data.calibration):,} more held out for calibration" if len(data.calibration) else ""
        logger.info("Training rows: %s%s.", describe_rows(data.task, data.train), held_out)
        warn_about_overlap(data)
        folder.prepare(settings, resume, processes.num_processes)
    processes.wait_for_everyone()
    stages = [run.run_stage(number, stage) for number, stage in enumerate(run.stages, 1)]
    scores = run.evaluate()
    if PartialState().is_main_process:
        run.write(scores, stages)
    PartialState().wait_for_everyone()
    return read_result(output)


def close_process_group() -> None:
    """Close the process group and end its threads: gloo's threads abort a process that ends while they are running."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        time.sleep(RELEASE_SECONDS)  # gloo's threads need the GIL, which waiting for their end holds
        gc.collect()  # the trainer and its model refer to the group, in cycles; the last reference ends the threads


class TrainingRun:
    """A training run: model, data and settings shared by its stages."""

    def __init__(self, settings: Settings, recipe: Recipe, model: AdaptiveModel, data: Data):
        self.settings, self.recipe, self.model, self.data = settings, recipe, model, data
        self.output = Path(settings.output)
        self.started = time.time()
        model.config.max_tokens = length = self._max_length()
        model.config.inputs = list(data.task.inputs)
        tokenizer = model.tokenizer
        model.config.no_answer = 0.0 if data.task.no_answer else None
        answer_type = data.task.answer_type
        encoder = answer_type.encoder_with_options(tokenizer, length, None, model.config.answer_options)
        train = encode_all(encoder, data.train.texts)
        self.train_rows = Examples(train, answer_type.targets(train, data.train.labels or []))
        self.dev_rows: dict[str, Examples] = {}
        first = 0
        for name, rows in data.dev.items():
            self.dev_rows[name] = Examples(encode_all(encoder, rows.texts), first=first)
            first += len(self.dev_rows[name])
        self.layers = tuple(spec.layer for spec in model.config.exit_specs)
        is_fresh = model.config.num_layers in model.exits.untrained_layers()
        self.stages = tuple(
            stage for stage in recipe.stages(model.config, settings.task) if is_fresh or not stage.skip_if_trained
        )
        if model.gates is not None and model.gates.width.first == "all":  # rows are padded to the maximum length
            model.gates.width = replace(model.gates.width, pad_to=length)
            model.config.width = model.gates.width.to_dict()
        self.epochs = self._epochs()
        self.loss_settings = self._loss_settings()
        for stage in self.stages:
            self.arguments(self.output, stage, 1)  # raises early if the options are invalid

    def _max_length(self) -> int:
        """Return the maximum length from the settings, the model's config or the recipe; inference uses it too."""
        self.model.runner()  # raises if the tokenizer's limit is invalid
        config = self.model.config
        maximum = config.family.max_length(config.backbone)
        length = self.settings.max_length or config.max_tokens
        if length is not None and length > maximum:
            raise BadValue(f"`max_length` must be at most {maximum}, the backbone's maximum, got {length}.")
        published = config.answer_type.default_max_length or self.recipe.published.max_length
        if isinstance(self.recipe, Imitate):  # same as the teacher
            published = maximum
        return length or int(min(published, maximum, self.model.tokenizer.model_max_length))

    # -- stages ----------------------------------------------------------------------------------

    def run_stage(self, number: int, stage: Stage) -> dict[str, Any]:
        """Train a stage, or load it if an interrupted run finished it; return its entry for scores.json."""
        stage_folder = self.output / folder.CHECKPOINTS / f"{number}-{stage.name}"
        done = stage_folder / "done"
        epochs = self.epochs[number - 1]
        if (done / SCORES).is_file():
            self.model.load_state_dict(AdaptiveModel.from_pretrained(done).state_dict())
            entry: dict[str, Any] = json.loads((done / SCORES).read_text("utf-8"))
            return entry
        if epochs == 0:
            return {"stage": stage.name, "skipped": True}
        if stage.from_states:
            entry = train_from_states(self.model, self.recipe, self.data.train, self.settings, epochs, stage_folder)
            self._reset_model()
            return {"stage": stage.name, "epochs": epochs} | entry
        trainer = self.trainer(stage_folder, stage, epochs)
        checkpoint = folder.last_checkpoint(stage_folder)
        if checkpoint is not None and trainer.is_world_process_zero():
            logger.info("Resuming from %s.", checkpoint)
        start = time.time()
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        self._reset_model()
        self._check_finite(stage)
        entry = {
            "stage": stage.name,
            "epochs": epochs,
            "updates": trainer.state.global_step,
            "seconds": round(time.time() - start, 1),
            "resumed": checkpoint is not None,
            "history": trainer.state.log_history,
        }
        if trainer.is_world_process_zero():
            part = stage_folder / "done.part"
            shutil.rmtree(part, ignore_errors=True)
            with writing(done):
                self.model.save_pretrained(part, exports=False)
                (part / SCORES).write_text(json.dumps(entry))
                part.replace(done)
        PartialState().wait_for_everyone()
        return entry

    def _check_finite(self, stage: Stage) -> None:
        for name, value in self.model.named_parameters():
            if not bool(value.isfinite().all()):
                raise BadValue(
                    f"Training diverged in stage {stage.name}: {name} is not finite. Try a lower learning rate."
                )

    def _epochs(self) -> list[float]:
        """Return the number of epochs of each stage."""
        epochs, num_stages = self.settings.epochs, len(self.stages)
        if epochs is None:
            return [self.recipe.published.epochs] * num_stages
        per_stage = epochs if isinstance(epochs, list) else [epochs] * num_stages
        if len(per_stage) != num_stages:
            raise BadValue(
                f"`epochs` has {len(per_stage)} numbers, but recipe {self.recipe.name} has {num_stages} "
                f"stage{'s' if num_stages > 1 else ''}."
            )
        if not all(isinstance(number, int | float) and number >= 0 for number in per_stage):
            raise BadValue(f"`epochs` must be at least 0, got {epochs}.")
        return [float(number) for number in per_stage]

    def trainer(self, stage_folder: Path, stage: Stage, epochs: float) -> ExitTrainer:
        """Return the trainer of a stage, with its checkpoints in `stage_folder`."""
        metric = self.data.task.metrics[0]
        callbacks: list[Any] = [Progress(stage.name, self.layers, metric)]
        if self.settings.early_stopping is not None:
            callbacks.append(EarlyStoppingCallback(self.settings.early_stopping))
        dev = self.dev_rows
        trainer = ExitTrainer(
            self.model,
            self.recipe,
            stage,
            self.loss_settings,
            args=self.arguments(stage_folder, stage, epochs),
            train_dataset=self.train_rows,
            eval_dataset=dev if len(dev) > 1 else next(iter(dev.values())),
            data_collator=Padder(self.model.tokenizer.pad_token_id or 0),
            compute_metrics=lambda p: flatten_scores(self._score_exits(p), self.layers, metric),
            callbacks=callbacks,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        return trainer

    def arguments(self, stage_folder: Path, stage: Stage, epochs: float) -> TrainingArguments:
        """Return the training arguments of a stage."""
        return make_training_arguments(
            self.settings, self.recipe.published, stage_folder, epochs, self._selection_score(stage)
        )

    def _selection_score(self, stage: Stage) -> str | None:
        """Return the trainer's metric that selects the best checkpoint; None keeps the last checkpoint."""
        select = self.settings.select
        if select == "none":
            return None
        name = stage.select_by if select == "auto" else select
        if name.isdigit():
            if int(name) not in self.layers:
                raise BadValue(f"`select` is {name}, but the exit layers are {', '.join(map(str, self.layers))}.")
            name = f"exit_{name}_{self.data.task.metrics[0]}"
        elif name not in ("mean", "last"):
            raise BadValue(f"`select` must be auto, mean, last, none or an exit layer, got {name!r}.")
        first = next(iter(self.dev_rows))
        return f"eval_{first}_{name}" if len(self.dev_rows) > 1 else f"eval_{name}"

    def _loss_settings(self) -> LossSettings:
        settings, task = self.settings, self.data.task
        weights = settings.class_weights
        if (weights is not None or settings.label_smoothing) and not task.answer_type.has_labels:
            raise BadValue(
                f"`class_weights=` and `label_smoothing=` need classes, but the task is {task.answer_type.title}; "
                "remove them."
            )
        if settings.label_smoothing and not task.answer_type.is_single_class:
            raise BadValue("`label_smoothing=` supports single-label classification only; remove it.")
        if weights is not None and weights != "balanced" and not isinstance(weights, list):
            raise BadValue(
                f"`class_weights` must be balanced, or one number per class, such as 1,2.5, got {weights!r}."
            )
        if weights == "balanced" and task.answer_type.per_token:
            raise BadValue(f"`class_weights='balanced'` does not support {task.answer_type.title}; use a list.")
        if weights == "balanced":
            weights = _balanced_weights(np.asarray(self.data.train.labels), task.num_labels)
        if weights is not None and len(weights) != task.num_labels:
            raise BadValue(f"`class_weights` has {len(weights)} numbers, but there are {task.num_labels} classes.")
        return LossSettings(
            None if weights is None else tuple(map(float, weights)),
            settings.label_smoothing,
            settings.head_learning_rate,
            settings.group_by_length,
        )

    def _reset_model(self) -> None:
        """Undo what a stage changed in the model apart from its weights."""
        self.model.gradient_equilibrium = self.model.gates_are_open = False
        for value in self.model.parameters():
            value.requires_grad_(True)
            value.grad = None

    def _earlier_training_rows(self) -> str:
        """Return whether all rows that the backbone was fine-tuned on are known; a classifier's are not."""
        if self.data.backbone_hashes:
            return holdout.earlier_training_rows(Path(self.settings.backbone))
        model_type = AutoConfig.from_pretrained(self.settings.backbone).model_type
        fine_tuned = model_type == "offramp" or self.model.config.exit_specs[-1].head == "family"
        if fine_tuned:
            logger.warning(
                "%s was fine-tuned on unknown rows: make sure that none of them is held out for calibration.",
                self.settings.backbone,
            )
        return holdout.UNKNOWN if fine_tuned else holdout.KNOWN

    # -- results ---------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, list[dict[str, float]]]:
        """Return all metrics of every exit on each dev set, with the current weights."""
        trainer = self.trainer(self.output / folder.CHECKPOINTS / "end", Stage("end", lambda o, _: o.loss(-1)), 1)
        scores = {name: self._score_exits(trainer.predict(rows)) for name, rows in self.dev_rows.items()}
        self._reset_model()
        return scores

    def _score_exits(self, output: Any) -> list[dict[str, float]]:
        """Return all metrics of every exit for an evaluation output of the trainer."""
        first = int(output.label_ids.min())
        (name,) = [name for name, rows in self.dev_rows.items() if rows.first == first]
        labels = self.data.task.answer_type.label_array(self.data.dev[name].labels or [])
        return score_exits(output.predictions, output.label_ids, self.dev_rows[name], labels, self.data.task)

    def write(self, dev: dict[str, list[dict[str, float]]], stages: list[dict[str, Any]]) -> None:
        """Write the model folder: weights, tokenizer, card, scores, and hashes of the rows."""
        data, task = self.data, self.data.task
        scores = {
            "task": task.name,
            "recipe": self.recipe.name,
            "recipe_options": {option.name: getattr(self.recipe, option.name) for option in fields(self.recipe)},
            "metric": task.metrics[0],
            "layers": list(self.layers),
            "dev": dev,
            "rows": {
                "train": len(data.train),
                "calibration": len(data.calibration),
                **{name: len(rows) for name, rows in data.dev.items()},
            },
            "seconds": round(time.time() - self.started, 1),
            "stages": stages,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {
                "offramp": offramp.__version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        }
        self.model.config.card = card.card_facts(self.model.config.card, task, dev, task.metrics[0])
        new = self.output / ".new"
        shutil.rmtree(new, ignore_errors=True)
        self.model.config.notes = card.training_notes(scores, self.settings, self.recipe)
        roles = {"train": data.train, "calibration": data.calibration}
        hashes = {role: hash_texts(rows.texts) for role, rows in roles.items()}
        shared = hash_texts(data.task.answer_type.shared_texts(data.train.texts))
        hashes["train"] = np.concatenate([hashes["train"], shared])
        hashes["dev"] = np.concatenate([hash_texts(rows.texts) for rows in data.dev.values()])
        hashes[holdout.TRAIN_NORMALIZED] = hash_texts(data.train.texts, normalizer(self.model.tokenizer))
        for role in ("train", "dev", holdout.TRAIN_NORMALIZED):  # include the rows of an offramp backbone
            hashes[role] = np.concatenate([hashes[role], data.backbone_hashes.get(role, hashes[role][:0])])
        with writing(self.output):
            self.model.save_pretrained(new, exports=False)
            (new / SCORES).write_text(json.dumps(scores, indent=1), encoding="utf-8")
            holdout.write_hashes(new, hashes, self._earlier_training_rows())
        folder.finish(new, self.output, self.settings.keep_checkpoints)


def _balanced_weights(labels: Any, classes: int) -> list[float]:
    """Return rows / (classes × rows of the class), as scikit-learn; for multi-label, negatives per positive."""
    if labels.ndim == 2:
        positives = labels.sum(0)
        return [float(value) for value in (len(labels) - positives).clip(1) / positives.clip(1)]
    counts = np.bincount(labels, minlength=classes).clip(1)
    return [float(value) for value in len(labels) / (classes * counts)]
