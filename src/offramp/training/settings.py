"""Every option of a training run; the command line, `--config` files and `training.yaml` are made from this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from offramp.data.source import TABLE_KINDS
from offramp.data.trained import FILE, PATHS, read_options
from offramp.errors import BadInput, BadValue, UnknownName
from offramp.model.renamed import current_recipe_options

__all__ = ["FILE", "Settings", "read_settings", "write_settings"]

NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
LEAST = dict.fromkeys(("batch_size", "eval_batch_size", "accumulation", "max_length", "train_rows"), 1)
LEAST |= dict.fromkeys(("queries", "query_width"), 1)
LEAST |= dict.fromkeys(("eval_every", "save_every", "log_every", "early_stopping"), 1)
LEAST |= dict.fromkeys(("weight_decay", "warmup", "max_grad_norm", "seed"), 0)
ABOVE_0 = ("learning_rate", "head_learning_rate", "adam_epsilon")
MOST = {"seed": 2**32 - 1, "queries": 4096, "query_width": 4096}  # what NumPy takes; what a config allows
LARGEST = 10**12  # of anything else that is counted: what is larger is a slip
# options that are a number or a list: of which kinds, the word that may stand for it, and how a message calls it
SEVERAL: dict[str, tuple[tuple[type, ...], str | None, str]] = {
    "exits": ((Integral,), "all", "all, or a list of layers"),
    "epochs": ((Real,), None, "a number, or one per stage"),
    "class_weights": ((Real,), "balanced", "balanced, or a number per class"),
    "seeds": ((Integral,), None, "a list of whole numbers"),
}


def option(default: Any, group: str, about: str, **more: Any) -> Any:
    """A field with the text that `--help` shows."""
    metadata = {"group": group, "help": about} | more
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """A run, whole: the same settings, data and versions give the same model."""

    backbone: str
    output: str
    task: str | None = option(None, "data", "a task of GLUE, ELUE or SQuAD, such as sst-2, elue-mrpc, squad or squad2")
    data_dir: str | None = option(None, "data", "the folder of its official download")
    dataset: str | None = option(None, "data", "a data set on the Hub or a folder of one; a task brings its own")
    dataset_config: str | None = option(None, "data", "which configuration of the data set")
    train_file: str | None = option(None, "data", "a file in place of the train split (TSV, CSV, JSON lines, Parquet)")
    dev_file: str | None = option(None, "data", "a file in place of the dev split")
    text_column: str | None = option(None, "data", "own data: the text (a column called text or sentence)")
    pair_column: str | None = option(None, "data", "own data: the text's partner")
    label_column: str | None = option(None, "data", "own data: the label (a column called label)")
    problem: str = option("auto", "data", "own data: the kind of answer", choices=TABLE_KINDS)
    metric: str | None = option(None, "data", "own data: the metric that counts")
    train_rows: int | None = option(None, "data", "only so many training rows, chosen by seed")
    calibration_split: float = option(0.1, "data", "the share of training rows set aside for calibrate; 0 for none")
    max_length: int | None = option(None, "data", "tokens of a text; the rest is cut off")

    exits: Any = option("all", "model", "the layers with an exit: all, or 2,4,6", metavar="LAYERS")
    heads: str = option("auto", "model", "linear, pooler, shared, family, attention")
    queries: int = option(4, "model", "with attention: learned queries of a head")
    query_width: int = option(64, "model", "with attention: numbers that a query reads")
    pooling: str = option("auto", "model", "what a head reads: first (as the published recipes did) or mean")
    num_layers: int | None = option(None, "model", "only the encoder's first layers", metavar="K")
    fresh_head: bool = option(False, "model", "leave a classifier's own head out and train a new one")

    recipe: str = option("joint", "recipe", "how the exits are trained; `--recipe list` tells")
    recipe_options: dict[str, Any] = option({}, "recipe", "options of the recipe", hidden=True)

    epochs: Any = option(None, "training", "per stage, such as 3, or 3,1 for two stages; 0 skips a stage", metavar="E")
    max_steps: int = option(-1, "training", "updates per stage, whatever the epochs")
    batch_size: int | None = option(None, "training", "rows per process and batch")
    eval_batch_size: int = option(64, "training", "the same on dev")
    accumulation: int = option(1, "training", "batches per update")
    learning_rate: float | None = option(None, "training", "its peak")
    head_learning_rate: float | None = option(
        None, "training", "the heads' (1e-3 for linear ones and attention, else as all)"
    )
    weight_decay: float | None = option(None, "training", "AdamW's")
    adam_epsilon: float = option(1e-8, "training", "AdamW's")
    warmup: float | None = option(None, "training", "steps; below 1 a share of all steps")
    schedule: str = option("linear", "training", "a schedule of transformers' that needs no numbers of its own")
    max_grad_norm: float = option(1.0, "training", "gradients are clipped to it; 0 for never")
    label_smoothing: float = option(0.0, "training", "0 to 1")
    class_weights: Any = option(None, "training", "balanced, or a number per class: 1,2.5", metavar="W")
    group_by_length: bool = option(True, "training", "batches of like lengths")
    seed: int = option(42, "training", "of everything random")
    seeds: Any = option(None, "training", "a run per seed and a summary: 1,2,3", metavar="S")

    select: str = option("auto", "dev", "which score chooses the checkpoint: mean, last, an exit's layer, none")
    early_stopping: int | None = option(None, "dev", "stop after so many evaluations without a better score")
    eval_every: int | None = option(None, "dev", "updates between evaluations (each epoch)")
    save_every: int | None = option(None, "dev", "updates between checkpoints (as evaluations)")
    log_every: int = option(50, "dev", "updates between logged losses")
    keep_checkpoints: bool = option(False, "dev", "leave them in OUTPUT/checkpoints")

    bf16: bool = option(False, "machine", "mixed precision")
    fp16: bool = option(False, "machine", "mixed precision with loss scaling")
    gradient_checkpointing: bool = option(False, "machine", "less memory, more time")
    cpu: bool = option(False, "machine", "leave GPUs alone")
    report_to: str = option("none", "machine", "tensorboard, wandb, or several: tensorboard,wandb")

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, _checked(one, getattr(self, one.name)))

    def absolute(self) -> Settings:
        """The same with whole paths, so that training.yaml means the same from every folder."""
        here = {name: getattr(self, name) for name in ("backbone", "output", *PATHS)}
        local = {name for name in here if name not in ("backbone", "dataset") or Path(str(here[name])).exists()}
        whole = {name: str(Path(here[name]).absolute()) for name in local if here[name] is not None}
        whole["output"] = str(Path(self.output).resolve())  # a link's target is what is filled and replaced
        return self.changed(**whole)

    def changed(self, **values: Any) -> Settings:
        """The same with other values."""
        return replace(self, **values)


def _checked(one: Field[Any], value: Any) -> Any:
    """A value as its option wants it, within its range."""
    made, name = _typed(one, value), f"`{one.name}`"
    if one.name == "problem" and made not in TABLE_KINDS:
        raise UnknownName("kind of problem", made, TABLE_KINDS)
    if one.name in SEVERAL and not _is_several(made, *SEVERAL[one.name]):
        raise BadValue(f"{name} is {value!r:.60}; it is {SEVERAL[one.name][2]}.")
    if not isinstance(made, int | float) or isinstance(made, bool):
        return made
    if one.name in LEAST and not made >= LEAST[one.name]:
        raise BadValue(f"{name} is {made}; it is at least {LEAST[one.name]}.")
    if one.name in ABOVE_0 and not made > 0:
        raise BadValue(f"{name} is {made}; it is above 0.")
    if one.name == "label_smoothing" and not 0 <= made < 1:
        raise BadValue(f"`label_smoothing` is {made}; it is from 0 to below 1.")
    if isinstance(made, float) and not isfinite(made):
        raise BadValue(f"{name} is {made}; it is finite.")
    if isinstance(made, int) and abs(made) > MOST.get(one.name, LARGEST):
        raise BadValue(f"{name} is {made!s:.20}; it is at most {MOST.get(one.name, LARGEST):,}.")
    return made


def _is_several(value: Any, kinds: tuple[type, ...], word: str | None, _: str) -> bool:
    """Whether it is nothing, that word, a number of those kinds, or a list of such."""
    each = value if isinstance(value, list) else [value]
    if value is None or (word is not None and value == word):
        return True
    plain = all(isinstance(one, kinds) and not isinstance(one, bool) for one in each)
    return plain and each != [] and all(abs(one) <= LARGEST for one in each)


def _typed(one: Field[Any], value: Any) -> Any:
    """A value as its option wants it (a file's 2e-5 comes as a string); tuples as lists, so that YAML keeps them."""
    kind = str(one.type)
    if isinstance(value, tuple):
        value = list(value)
    if (value is None and "None" in kind) or kind == "Any":
        return value
    if kind == "dict[str, Any]":
        if not isinstance(value, Mapping):
            raise BadValue(f"`{one.name}` is {value!r:.60}, expected names with values.")
        return dict(value)
    wanted = {"int": int, "float": float, "bool": bool, "str": str}[kind.removesuffix(" | None")]
    if wanted is str and isinstance(value, list):
        value = ",".join(map(str, value))
    fits = not isinstance(value, list | dict | bool | None) if wanted is not bool else isinstance(value, bool)
    try:
        made = wanted(value) if fits else None
        whole = wanted is not int or isinstance(value, int) or made == float(value)
    except (TypeError, ValueError, OverflowError):
        made, whole = None, False
    if made is None or not whole:
        raise BadValue(f"`{one.name}` is {value!r:.60}, expected {NAMES[wanted]}.")
    return made


def write_settings(settings: Settings, folder: Path) -> None:
    """As YAML, for `offramp train --config`."""
    import yaml

    text = yaml.safe_dump(asdict(settings), sort_keys=False, allow_unicode=True)
    (folder / FILE).write_text("# offramp train --config THIS-FILE repeats the run\n" + text, encoding="utf-8")


def read_settings(file: Path) -> dict[str, Any]:
    """The options of a YAML or JSON file, names and values checked."""
    options = read_options(file)
    if isinstance(options.get("recipe_options"), dict):
        options["recipe_options"] = current_recipe_options(options["recipe_options"])
    known = {one.name: one for one in fields(Settings)}
    for name, value in options.items():
        try:
            if name not in known:
                raise UnknownName("option", name, known)
            options[name] = _checked(known[name], value)
        except (BadValue, UnknownName) as err:
            raise BadInput(f"{file}: {err}") from err
    return options
