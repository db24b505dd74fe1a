"""`train(settings)`: data, model, the recipe's stages one after the other, and a model folder in the end."""

from __future__ import annotations

import json
import logging
import shutil
import time
from dataclasses import dataclass, fields, replace
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
from offramp.data import labels
from offramp.data.hashes import hashes_of
from offramp.data.own import understood
from offramp.data.task import Task
from offramp.errors import BadValue
from offramp.files.faults import loading
from offramp.files.writing import writing
from offramp.model import guarantee
from offramp.model.adaptive import AdaptiveModel
from offramp.model.attach import ExitOptions, add_exits
from offramp.training import card, folder, holdout
from offramp.training.arguments import library_arguments, on_cpu
from offramp.training.data import Data, Tables, read_data, reorder_labels, warn_of_overlap
from offramp.training.examples import Examples, Padder, encoded
from offramp.training.imitating import imitated_model, run_from_states, unlabelled
from offramp.training.lock import only_run_in
from offramp.training.progress import Progress
from offramp.training.recipes import Recipe, Stage, check, make
from offramp.training.recipes.imitate import Imitate
from offramp.training.scores import flat_scores, per_exit
from offramp.training.settings import Settings
from offramp.training.trainer import ExitTrainer, LossSettings

__all__ = ["Result", "close_process_group", "train"]

logger = logging.getLogger("offramp")

SCORES = "scores.json"


@dataclass(frozen=True)
class Result:
    """What a run gave: the folder, and every metric of every exit on each dev set."""

    folder: Path
    layers: tuple[int, ...]
    metric: str
    dev: dict[str, list[dict[str, float]]]

    def table(self, label: str | None = None, header: bool = True) -> str:
        """The main score of every exit in percent, a line per dev set."""
        lines = [f"{self.metric:<16}" + "".join(f"{f'exit {layer}':>9}" for layer in self.layers) + f"{'mean':>9}"]
        for name, exits in self.dev.items():
            values = [one[self.metric] for one in exits]
            shown = name if label is None else label if len(self.dev) == 1 else f"{label} {name}"
            values.append(float(np.mean(values)))
            lines.append(f"{shown:<16}" + "".join(f"{100 * value:>9.1f}" for value in values))
        return "\n".join(lines if header else lines[1:])


def train(settings: Settings, *, resume: bool = False, overwrite: bool = False, tables: Tables | None = None) -> Result:
    """Run one training, from nothing or from its last checkpoint."""
    settings = settings.absolute()
    # without a GPU several processes meet only if told that they are on the CPU
    processes = PartialState(cpu=on_cpu(settings))
    folder.check_place(settings)
    with only_run_in(Path(settings.output)):
        return _train(settings, processes, resume, overwrite, tables)


def _train(settings: Settings, processes: PartialState, resume: bool, overwrite: bool, tables: Tables | None) -> Result:
    output = Path(settings.output)
    folder.check(settings, resume, overwrite, processes.num_processes)
    if resume and folder.is_finished(output):
        logger.warning("%s is finished; there is nothing to resume.", output)
        return read_result(output)
    recipe = make(settings.recipe, settings.recipe_options)
    data = read_data(settings, unlabelled(settings, recipe), tables)
    set_seed(settings.seed)
    model = build(settings, recipe, data.task)
    if (width := recipe.width()) is not None:
        model.add_gates(width)
    data = reorder_labels(data, model.config.labels)
    check(recipe, model.config)
    job = Job(settings, recipe, model, data)
    processes.wait_for_everyone()
    if processes.is_main_process:
        held = f", {len(data.calibration):,} more set aside" if len(data.calibration) else ""
        logger.warning("Training rows: %s%s.", understood(data.task, data.train), held)
        warn_of_overlap(data)
        folder.prepare(settings, resume, processes.num_processes)
    processes.wait_for_everyone()
    stages = [job.run(number, stage) for number, stage in enumerate(job.stages, 1)]
    result = job.evaluate()
    if PartialState().is_main_process:
        job.write(result, stages)
    PartialState().wait_for_everyone()
    return read_result(output)


def close_process_group() -> None:
    """Leave the other processes; gloo's threads abort a process that ends while they live."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def read_result(output: Path) -> Result:
    """What a finished run gave."""
    found = json.loads((output / SCORES).read_text("utf-8"))
    return Result(output, tuple(found["layers"]), found["metric"], found["dev"])


def build(settings: Settings, recipe: Recipe, task: Task) -> AdaptiveModel:
    """Exits on the backbone, as the recipe and the task need them; or an offramp model as it is."""
    with loading(settings.backbone):
        config = AutoConfig.from_pretrained(settings.backbone)
    if isinstance(recipe, Imitate):
        return _named(imitated_model(settings), settings, task)
    if config.model_type == "offramp":
        return _again(settings, recipe, task)
    exits = settings.exits
    if recipe.only_last:
        if exits != "all":
            raise BadValue(f"Recipe {recipe.name} has one exit, behind the last layer; leave `exits=` out.")
        exits = [settings.num_layers or config.num_hidden_layers]
    return AdaptiveModel.from_backbone(
        settings.backbone,
        exits=exits,
        heads=_heads(settings, recipe),
        pooling=settings.pooling,
        num_layers=settings.num_layers,
        labels=_labels(config, task),
        num_labels=task.num_labels,
        problem_type=task.answer_type.name,
        lte=recipe.lte,
        fresh_head=settings.fresh_head,
        queries=settings.queries,
        query_width=settings.query_width,
    )


def _heads(settings: Settings, recipe: Recipe) -> str:
    """On the first token the heads that the recipe's authors had, unless others are asked for."""
    published = settings.heads == "auto" and settings.pooling == "first"
    return recipe.published.head if published else settings.heads


def _again(settings: Settings, recipe: Recipe, task: Task) -> AdaptiveModel:
    """An offramp model goes on with the labels that it has, and with its exits; one that has a single one gets more."""
    model: AdaptiveModel = AdaptiveModel.from_pretrained(settings.backbone)
    shape = {"exits": "all", "heads": "auto", "pooling": "auto", "num_layers": None, "fresh_head": False}
    if plain := len(model.config.exit_specs) == 1 and not recipe.only_last:
        shape = {name: shape[name] for name in ("num_layers", "fresh_head")}
    for name, default in shape.items():
        if getattr(settings, name) != default:
            raise BadValue(f"{settings.backbone} has its exits already; leave `{name}=` out.")
    guarantee.forget(model.config)
    if plain:
        model = _with_exits(model, settings, recipe)
    for spec in model.config.exit_specs:
        model.exits.head(spec.layer).temperature = spec.temperature
    return _named(model, settings, task)


def _named(model: AdaptiveModel, settings: Settings, task: Task) -> AdaptiveModel:
    """With its classes called as the task calls them."""
    config = model.config
    names = labels.fit(settings.backbone, config.labels, config.answer_type, task)
    config.id2label = dict(enumerate(names))
    config.label2id = {label: place for place, label in enumerate(names)}
    return model


def _with_exits(model: AdaptiveModel, settings: Settings, recipe: Recipe) -> AdaptiveModel:
    """What `--recipe plain` left, with exits for another recipe."""
    asked = ExitOptions(
        settings.exits,
        _heads(settings, recipe),
        settings.pooling,
        lte=recipe.lte,
        queries=settings.queries,
        query_width=settings.query_width,
    )
    more = add_exits(model.config, model.state_dict(), asked)
    whole = AdaptiveModel(more.config)
    whole.load_state_dict(more.weights, strict=False)
    whole.name_or_path = more.config._name_or_path = model.name_or_path
    return whole


def _labels(config: Any, task: Task) -> tuple[str, ...] | None:
    """The task's labels, in the order of the checkpoint's own classes where it has just these."""
    if not task.answer_type.has_labels:
        return None
    own = [str(name) for _, name in sorted((config.id2label or {}).items())]
    return labels.in_order_of(own, task) or task.labels


class Job:
    """One run's parts, shared by its stages."""

    def __init__(self, settings: Settings, recipe: Recipe, model: AdaptiveModel, data: Data):
        self.settings, self.recipe, self.model, self.data = settings, recipe, model, data
        self.output = Path(settings.output)
        self.started = time.time()
        model.config.max_tokens = length = self._max_length()
        model.config.inputs = list(data.task.inputs)
        tokenizer = model.tokenizer
        model.config.no_answer = 0.0 if data.task.no_answer else None
        kind = data.task.answer_type
        encoder = kind.encoder(tokenizer, length)
        train = encoded(encoder, data.train.texts)
        self.train_rows = Examples(train, kind.targets(train, data.train.labels or []))
        self.dev_rows: dict[str, Examples] = {}
        first = 0
        for name, rows in data.dev.items():
            self.dev_rows[name] = Examples(encoded(encoder, rows.texts), first=first)
            first += len(self.dev_rows[name])
        self.layers = tuple(spec.layer for spec in model.config.exit_specs)
        is_fresh = model.config.num_layers in model.exits.untrained()
        self.stages = tuple(
            stage for stage in recipe.stages(model.config, settings.task) if is_fresh or not stage.only_fresh
        )
        if model.gates is not None and model.gates.width.first == "all":  # rows are padded as far as they may be long
            model.gates.width = replace(model.gates.width, pad_to=length)
            model.config.width = model.gates.width.to_dict()
        self.epochs = self._epochs()
        self.weighing = self._weighing()
        for stage in self.stages:  # whatever is wrong with them is said now
            self.arguments(self.output, stage, 1)

    def _max_length(self) -> int:
        """As asked for, or as the model had it, or as the recipe's authors cut; what the model serves with, too."""
        self.model.runner()  # says what is wrong with the tokenizer's own limit
        config = self.model.config
        most = config.family.max_length(config.backbone)
        wanted = self.settings.max_length or config.max_tokens
        if wanted is not None and wanted > most:
            raise BadValue(f"max-length is {wanted}, but the backbone has positions for {most} tokens.")
        published = config.answer_type.usual_length or self.recipe.published.max_length
        if isinstance(self.recipe, Imitate):  # its teacher's own
            published = most
        return wanted or int(min(published, most, self.model.tokenizer.model_max_length))

    # -- stages ----------------------------------------------------------------------------------

    def run(self, number: int, stage: Stage) -> dict[str, Any]:
        """Train one stage, or take up what an earlier run left of it."""
        place = self.output / folder.CHECKPOINTS / f"{number}-{stage.name}"
        done = place / "done"
        epochs = self.epochs[number - 1]
        if (done / SCORES).is_file():
            self.model.load_state_dict(AdaptiveModel.from_pretrained(done).state_dict())
            told: dict[str, Any] = json.loads((done / SCORES).read_text("utf-8"))
            return told
        if epochs == 0:
            return {"stage": stage.name, "skipped": True}
        if stage.from_states:
            told = run_from_states(self.model, self.recipe, self.data.train, self.settings, epochs, place)
            self._release()
            return {"stage": stage.name, "epochs": epochs} | told
        trainer = self.trainer(place, stage, epochs)
        checkpoint = folder.last_checkpoint(place)
        if checkpoint is not None:
            logger.warning("Going on from %s.", checkpoint)
        began = time.time()
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        self._release()
        self._check_finite(stage)
        told = {
            "stage": stage.name,
            "epochs": epochs,
            "updates": trainer.state.global_step,
            "seconds": round(time.time() - began, 1),
            "resumed": checkpoint is not None,
            "history": trainer.state.log_history,
        }
        if trainer.is_world_process_zero():
            part = place / "done.part"
            shutil.rmtree(part, ignore_errors=True)
            with writing(done):
                self.model.save_pretrained(part)
                (part / SCORES).write_text(json.dumps(told))
                part.replace(done)
        PartialState().wait_for_everyone()
        return told

    def _check_finite(self, stage: Stage) -> None:
        if bad := [name for name, value in self.model.named_parameters() if not bool(value.isfinite().all())]:
            raise BadValue(
                f"Training came apart in stage {stage.name}: {bad[0]} is not finite. Try a lower learning rate."
            )

    def _epochs(self) -> list[float]:
        wanted, stages = self.settings.epochs, len(self.stages)
        if wanted is None:
            return [self.recipe.published.epochs] * stages
        each = wanted if isinstance(wanted, list) else [wanted] * stages
        if len(each) != stages:
            raise BadValue(f"epochs names {len(each)} stages, but recipe {self.recipe.name} has {stages}.")
        if not all(isinstance(one, int | float) and one >= 0 for one in each):
            raise BadValue(f"epochs are {wanted}; give numbers from 0, one or one per stage.")
        return [float(one) for one in each]

    def trainer(self, place: Path, stage: Stage, epochs: float) -> ExitTrainer:
        """The loop of a stage."""
        metric = self.data.task.metrics[0]
        callbacks: list[Any] = [Progress(stage.name, self.layers, metric)]
        if self.settings.early_stopping is not None:
            callbacks.append(EarlyStoppingCallback(self.settings.early_stopping))
        dev = self.dev_rows
        trainer = ExitTrainer(
            self.model,
            self.recipe,
            stage,
            self.weighing,
            args=self.arguments(place, stage, epochs),
            train_dataset=self.train_rows,
            eval_dataset=dev if len(dev) > 1 else next(iter(dev.values())),
            data_collator=Padder(self.model.tokenizer.pad_token_id or 0),
            compute_metrics=lambda p: flat_scores(self._per_exit(p), self.layers, metric),
            callbacks=callbacks,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        return trainer

    def arguments(self, place: Path, stage: Stage, epochs: float) -> TrainingArguments:
        """Our settings as the library's."""
        return library_arguments(self.settings, self.recipe.published, place, epochs, self._selection_score(stage))

    def _selection_score(self, stage: Stage) -> str | None:
        """The score on dev that chooses the checkpoint, as the library calls it; none: the last one stays."""
        asked = self.settings.select
        if asked == "none":
            return None
        name = stage.with_risk_model_of if asked == "auto" else asked
        if name.isdigit():
            if int(name) not in self.layers:
                raise BadValue(f"select is {name}, but the exits sit on {', '.join(map(str, self.layers))}.")
            name = f"exit_{name}_{self.data.task.metrics[0]}"
        elif name not in ("mean", "last"):
            raise BadValue(f"select is {name!r}; say auto, mean, last, an exit's layer, or none.")
        first = next(iter(self.dev_rows))
        return f"eval_{first}_{name}" if len(self.dev_rows) > 1 else f"eval_{name}"

    def _weighing(self) -> LossSettings:
        settings, task = self.settings, self.data.task
        weights = settings.class_weights
        if (weights is not None or settings.label_smoothing) and not task.answer_type.has_labels:
            raise BadValue(
                f"A {task.answer_type.title} has no classes: leave `class_weights=` and `label_smoothing=` out."
            )
        if settings.label_smoothing and not task.answer_type.is_one_class:
            raise BadValue("`label_smoothing=` is for one label per text; leave it out.")
        if weights is not None and weights != "balanced" and not isinstance(weights, list):
            raise BadValue(f"class-weights are {weights!r}; say balanced, or a number per class: 1,2.5.")
        if weights == "balanced":
            weights = _balanced(np.asarray(self.data.train.labels), task.num_labels)
        if weights is not None and len(weights) != task.num_labels:
            raise BadValue(f"class-weights are {len(weights)}, but there are {task.num_labels} classes.")
        return LossSettings(
            None if weights is None else tuple(map(float, weights)),
            settings.label_smoothing,
            settings.head_learning_rate,
            settings.group_by_length,
        )

    def _release(self) -> None:
        """Undo what a stage did to the model beyond its weights."""
        self.model.gradient_equilibrium = self.model.gates_are_open = False
        for value in self.model.parameters():
            value.requires_grad_(True)
            value.grad = None

    def _earlier_rows(self) -> str:
        """Whether all rows that the weights have seen are known here: not those of somebody's classifier."""
        if self.data.inherited:
            return holdout.earlier_rows(Path(self.settings.backbone))
        start = AutoConfig.from_pretrained(self.settings.backbone).model_type
        fine_tuned = start == "offramp" or self.model.config.exit_specs[-1].head == "family"
        if fine_tuned:
            logger.warning(
                "%s was fine-tuned on rows that are not known here: make sure that those set aside are not of them.",
                self.settings.backbone,
            )
        return holdout.UNKNOWN if fine_tuned else holdout.KNOWN

    # -- the end ---------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, list[dict[str, float]]]:
        """Every metric of every exit on each dev set, with the weights as they are now."""
        trainer = self.trainer(self.output / folder.CHECKPOINTS / "end", Stage("end", lambda o, _: o.loss(-1)), 1)
        found = {}
        for name, rows in self.dev_rows.items():
            told = trainer.predict(rows)
            found[name] = self._per_exit(told)
        self._release()
        return found

    def _per_exit(self, told: Any) -> list[dict[str, float]]:
        """Every metric of every exit, of what the library's loop collected."""
        first = int(told.label_ids.min())
        (name,) = [name for name, rows in self.dev_rows.items() if rows.first == first]
        labels = self.data.task.answer_type.label_array(self.data.dev[name].labels or [])
        return per_exit(told.predictions, told.label_ids, self.dev_rows[name], labels, self.data.task)

    def write(self, dev: dict[str, list[dict[str, float]]], stages: list[dict[str, Any]]) -> None:
        """The model folder: weights, tokenizer, card, scores, and who was where."""
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
        new = self.output / ".new"
        shutil.rmtree(new, ignore_errors=True)
        self.model.config.notes = card.training_notes(scores, self.settings, self.recipe)
        roles = {"train": data.train, "calibration": data.calibration}
        hashes = {role: hashes_of(rows.texts) for role, rows in roles.items()}
        shared = hashes_of(data.task.answer_type.shared_texts(data.train.texts))
        hashes["train"] = np.concatenate([hashes["train"], shared])
        hashes["dev"] = np.concatenate([hashes_of(rows.texts) for rows in data.dev.values()])
        for role in ("train", "dev"):  # what an offramp backbone has seen, this model has seen
            hashes[role] = np.concatenate([hashes[role], data.inherited.get(role, hashes[role][:0])])
        with writing(self.output):
            self.model.save_pretrained(new)
            (new / SCORES).write_text(json.dumps(scores, indent=1), encoding="utf-8")
            holdout.write_hashes(new, hashes, self._earlier_rows())
        folder.finish(new, self.output, self.settings.keep_checkpoints)


def _balanced(labels: Any, classes: int) -> list[float]:
    """Rare classes count more: rows / (classes × rows of the class); multi-label: noes per yes."""
    if labels.ndim == 2:
        yes = labels.sum(0)
        return [float(value) for value in (len(labels) - yes).clip(1) / yes.clip(1)]
    counts = np.bincount(labels, minlength=classes).clip(1)
    return [float(value) for value in len(labels) / (classes * counts)]
