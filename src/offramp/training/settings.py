"""Options of a training run. The command line, `--config` files and `training.yaml` are all built from `Settings`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from offramp.data.source import PROBLEM_CHOICES
from offramp.data.training_options import PATH_OPTIONS, TRAINING_FILE, read_options
from offramp.errors import BadInput, BadValue, UnknownName
from offramp.model.renamed import current_recipe_options

__all__ = ["TRAINING_FILE", "Settings", "read_settings", "write_settings"]

TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
MINIMUM = dict.fromkeys(("batch_size", "eval_batch_size", "accumulation", "max_length", "train_rows"), 1)
MINIMUM |= dict.fromkeys(("queries", "query_width"), 1)
MINIMUM |= dict.fromkeys(("eval_every", "save_every", "log_every", "early_stopping"), 1)
MINIMUM |= dict.fromkeys(("weight_decay", "warmup", "max_grad_norm", "seed", "convolution"), 0)
POSITIVE = ("learning_rate", "head_learning_rate", "adam_epsilon")
MAXIMUM = {"seed": 2**32 - 1} | dict.fromkeys(("queries", "query_width", "convolution"), 4096)
DEFAULT_MAXIMUM = 10**12  # of every other count
# options that take a single value or a list: element types, words that are also accepted, description for errors
LIST_OPTIONS: dict[str, tuple[tuple[type, ...], tuple[str, ...], str]] = {
    "exits": ((Integral,), ("all", "auto"), "'auto', 'all' or a list of layers"),
    "epochs": ((Real,), (), "a number, or a list with one number per stage"),
    "class_weights": ((Real,), ("balanced",), "'balanced' or a list with one number per class"),
    "seeds": ((Integral,), (), "a list of whole numbers"),
}


def option(default: Any, group: str, description: str, **metadata: Any) -> Any:
    """Return a dataclass field with its `--help` text."""
    metadata = {"group": group, "help": description} | metadata
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """All options of a training run. The same settings, data and library versions give the same model."""

    backbone: str
    output: str
    task: str | None = option(None, "data", "GLUE, ELUE or SQuAD task, such as sst-2, elue-mrpc, squad or squad2")
    data_dir: str | None = option(None, "data", "folder with the task's official download (default: the Hub)")
    dataset: str | None = option(None, "data", "dataset on the Hub, or a local dataset folder (default: the task's)")
    dataset_config: str | None = option(None, "data", "configuration of the dataset (default: the task's)")
    train_file: str | None = option(
        None, "data", "training file: TSV, CSV, JSON lines, Parquet, CoNLL columns, or plain text with --recipe imitate"
    )
    dev_file: str | None = option(None, "data", "development file, in the same formats")
    text_column: str | None = option(None, "data", "custom data: text column (default: text or sentence)")
    pair_column: str | None = option(None, "data", "custom data: column with the second text of each pair")
    label_column: str | None = option(None, "data", "custom data: label column (default: label)")
    problem: str = option("auto", "data", "custom data: problem type", choices=PROBLEM_CHOICES)
    metric: str | None = option(None, "data", "custom data: main metric (default: by problem type)")
    train_rows: int | None = option(None, "data", "train on a random subset of this many rows (default: all)")
    calibration_split: float = option(0.1, "data", "fraction of training rows held out for calibration; 0 for none")
    max_length: int | None = option(
        None, "data", "maximum tokens per text; longer texts are truncated (default: the model's or the recipe's)"
    )

    exits: Any = option(
        "all",
        "model",
        "layers with an exit: all, auto (the embeddings, 0, and all layers), or a list such as 0,2,4",
        metavar="LAYERS",
    )
    heads: str = option(
        "auto",
        "model",
        "exit heads: linear, pooler (with a dense tanh layer), shared (one dense layer for all exits), family (the "
        "encoder family's classification head), attention (learned queries over the tokens) or auto (the recipe's)",
    )
    queries: int = option(4, "model", "with --heads attention: learned queries per exit head")
    query_width: int = option(64, "model", "with --heads attention: dimension of a query")
    convolution: int = option(
        0,
        "model",
        "channels of a convolution over neighbouring tokens, for attention heads on layers 0 to 2 and for taggers",
    )
    pooling: str = option("auto", "model", "pooling of the exit heads: auto, first (as published) or mean")
    num_layers: int | None = option(None, "model", "use only the first K layers (default: all)", metavar="K")
    fresh_head: bool = option(False, "model", "replace a fine-tuned classifier's own head with a new one")

    recipe: str = option("joint", "recipe", "how the exits are trained; `--recipe list` shows all recipes")
    recipe_options: dict[str, Any] = option({}, "recipe", "options of the recipe", hidden=True)

    epochs: Any = option(
        None,
        "training",
        "epochs, such as 3, or one number per stage, such as 3,1; 0 skips a stage (default: the recipe's)",
        metavar="E",
    )
    max_steps: int = option(-1, "training", "maximum updates per stage; overrides --epochs unless -1")
    batch_size: int | None = option(None, "training", "training batch size per process (default: the recipe's)")
    eval_batch_size: int = option(64, "training", "evaluation batch size per process")
    accumulation: int = option(1, "training", "gradient accumulation steps")
    learning_rate: float | None = option(None, "training", "peak learning rate (default: the recipe's)")
    head_learning_rate: float | None = option(
        None,
        "training",
        "learning rate of the exit heads (default: for linear and attention heads the larger of 1e-3 and "
        "--learning-rate, otherwise --learning-rate)",
    )
    weight_decay: float | None = option(None, "training", "weight decay of AdamW (default: the recipe's)")
    adam_epsilon: float = option(1e-8, "training", "epsilon of AdamW")
    warmup: float | None = option(
        None, "training", "warm-up steps; below 1, a fraction of all steps (default: the recipe's)"
    )
    schedule: str = option("linear", "training", "learning rate schedule, as named in transformers")
    max_grad_norm: float = option(1.0, "training", "gradient clipping norm; 0 to disable")
    label_smoothing: float = option(0.0, "training", "label smoothing, from 0 to below 1")
    class_weights: Any = option(
        None, "training", "balanced, or one weight per class, such as 1,2.5 (default: none)", metavar="W"
    )
    group_by_length: bool = option(True, "training", "batch texts of similar length together (default: yes)")
    seed: int = option(42, "training", "random seed")
    seeds: Any = option(None, "training", "train once per seed, such as 1,2,3, and summarize", metavar="S")

    select: str = option(
        "auto",
        "evaluation and checkpoints",
        "dev score that selects the checkpoint: mean (over the exits), last (the final exit), a layer number, none "
        "(keep the last one) or auto (the recipe's)",
    )
    early_stopping: int | None = option(
        None, "evaluation and checkpoints", "stop after this many evaluations without improvement (default: never)"
    )
    eval_every: int | None = option(
        None, "evaluation and checkpoints", "updates between evaluations (default: one epoch)"
    )
    save_every: int | None = option(
        None, "evaluation and checkpoints", "updates between checkpoints (default: same as evaluations)"
    )
    log_every: int = option(50, "evaluation and checkpoints", "updates between logged losses")
    keep_checkpoints: bool = option(False, "evaluation and checkpoints", "keep the checkpoints in OUT/checkpoints")

    bf16: bool = option(False, "hardware and logging", "bfloat16 mixed precision")
    fp16: bool = option(False, "hardware and logging", "float16 mixed precision with loss scaling")
    gradient_checkpointing: bool = option(False, "hardware and logging", "save memory at the cost of speed")
    cpu: bool = option(False, "hardware and logging", "train on the CPU even if there is a GPU")
    report_to: str = option(
        "none", "hardware and logging", "experiment trackers, such as tensorboard or tensorboard,wandb"
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            object.__setattr__(self, setting.name, _validate(setting, getattr(self, setting.name)))

    def absolute(self) -> Settings:
        """Return a copy with absolute paths, so that training.yaml works from any working directory."""
        values = {name: getattr(self, name) for name in ("backbone", "output", *PATH_OPTIONS)}
        local = {name for name in values if name not in ("backbone", "dataset") or Path(str(values[name])).exists()}
        paths = {name: str(Path(values[name]).absolute()) for name in local if values[name] is not None}
        paths["output"] = str(Path(self.output).resolve())  # of a symbolic link, the target is written and replaced
        return self.changed(**paths)

    def changed(self, **values: Any) -> Settings:
        """Return a copy with these values replaced."""
        return replace(self, **values)


def _validate(setting: Field[Any], value: Any) -> Any:
    """Return the value converted to the type of its setting; raise if it is out of range."""
    converted, name = _convert(setting, value), f"`{setting.name}`"
    if setting.name == "problem" and converted not in PROBLEM_CHOICES:
        raise UnknownName("problem type", converted, PROBLEM_CHOICES)
    if setting.name in LIST_OPTIONS and not _is_value_or_list(converted, *LIST_OPTIONS[setting.name]):
        raise BadValue(f"{name} must be {LIST_OPTIONS[setting.name][2]}, got {value!r:.60}.")
    if not isinstance(converted, int | float) or isinstance(converted, bool):
        return converted
    if setting.name in MINIMUM and not converted >= MINIMUM[setting.name]:
        raise BadValue(f"{name} must be at least {MINIMUM[setting.name]}, got {converted}.")
    if setting.name in POSITIVE and not converted > 0:
        raise BadValue(f"{name} must be greater than 0, got {converted}.")
    if setting.name == "label_smoothing" and not 0 <= converted < 1:
        raise BadValue(f"`label_smoothing` must be at least 0 and below 1, got {converted}.")
    if isinstance(converted, float) and not isfinite(converted):
        raise BadValue(f"{name} must be finite, got {converted}.")
    if isinstance(converted, int) and abs(converted) > (maximum := MAXIMUM.get(setting.name, DEFAULT_MAXIMUM)):
        raise BadValue(f"{name} must be at most {maximum:,}, got {converted!s:.20}.")
    return converted


def _is_value_or_list(value: Any, types: tuple[type, ...], words: tuple[str, ...], _: str) -> bool:
    """Whether the value is None, an accepted word, a number of these types, or a non-empty list of such numbers."""
    values = value if isinstance(value, list) else [value]
    if value is None or value in words:
        return True
    are_numbers = all(isinstance(number, types) and not isinstance(number, bool) for number in values)
    return are_numbers and values != [] and all(abs(number) <= DEFAULT_MAXIMUM for number in values)


def _convert(setting: Field[Any], value: Any) -> Any:
    """Return the value as the setting's type: YAML reads 2e-5 as a string, and cannot store tuples."""
    annotation = str(setting.type)
    if isinstance(value, tuple):
        value = list(value)
    if (value is None and "None" in annotation) or annotation == "Any":
        return value
    if annotation == "dict[str, Any]":
        if not isinstance(value, Mapping):
            raise BadValue(f"`{setting.name}` must be a mapping of names to values, got {value!r:.60}.")
        return dict(value)
    expected = {"int": int, "float": float, "bool": bool, "str": str}[annotation.removesuffix(" | None")]
    if expected is str and isinstance(value, list):
        value = ",".join(map(str, value))
    fits = not isinstance(value, list | dict | bool | None) if expected is not bool else isinstance(value, bool)
    try:
        converted = expected(value) if fits else None
        is_exact = expected is not int or isinstance(value, int) or converted == float(value)
    except (TypeError, ValueError, OverflowError):
        converted, is_exact = None, False
    if converted is None or not is_exact:
        raise BadValue(f"`{setting.name}` must be {TYPE_NAMES[expected]}, got {value!r:.60}.")
    return converted


def write_settings(settings: Settings, folder: Path) -> None:
    """Write `training.yaml`, which `offramp train --config` reads."""
    import yaml

    text = yaml.safe_dump(asdict(settings), sort_keys=False, allow_unicode=True)
    (folder / TRAINING_FILE).write_text(
        "# Repeat this run: offramp train --config THIS-TRAINING_FILE\n" + text, encoding="utf-8"
    )


def read_settings(file: Path) -> dict[str, Any]:
    """Return the validated options of a YAML or JSON file by name."""
    options = read_options(file)
    if isinstance(options.get("recipe_options"), dict):
        options["recipe_options"] = current_recipe_options(options["recipe_options"])
    known = {setting.name: setting for setting in fields(Settings)}
    for name, value in options.items():
        try:
            if name not in known:
                raise UnknownName("option", name, known)
            options[name] = _validate(known[name], value)
        except (BadValue, UnknownName) as err:
            raise BadInput(f"{file}: {err}") from err
    return options
