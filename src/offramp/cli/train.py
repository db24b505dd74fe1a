"""Add exits to an encoder and train them.

BACKBONE is an encoder, a fine-tuned classifier or an offramp model. The data are a GLUE, ELUE or SQuAD task (from the
Hugging Face Hub or its official download), a dataset on the Hub, or your own files.

Loss, epochs, batch size, learning rate, weight decay and warm-up default to those of the published recipe. Other
defaults differ from the publications: linear heads on the mean of the tokens with a learning rate of 1e-3, the best
epoch on dev instead of the last, a tenth of the training rows held out for calibration, batches of similar lengths. To
train as published: --faithful --pooling first --calibration-split 0 --select none --no-group-by-length (see "Run the
original systems" in the documentation). On several GPUs: torchrun --nproc-per-node N -m offramp train …

BACKBONE and --output are required unless --config sets them.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from offramp.cli import arguments
from offramp.cli.streams import echo
from offramp.training.recipes import RECIPES, Recipe, option_fields, recipe_options
from offramp.training.settings import Settings

EXAMPLES = """\
examples:
  offramp train bert-base-uncased --task sst-2 --data-dir GLUE --recipe romebert-sd --output my-model
  offramp train my-classifier --train-file train.csv --dev-file dev.csv --text-column review --output my-model
  offramp train --config my-model/training.yaml --output same-again
  offramp train --recipe list  # the recipes and their settings
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp train`: the fields of `Settings`, and the options of the recipes."""
    parser.add_argument(
        "backbone", metavar="BACKBONE", nargs="?", help="encoder: a folder or a name on the Hugging Face Hub"
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="read options from a YAML or JSON file; options on the command line override it",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--output", "-o", metavar="OUT", help="model folder to write")
    output.add_argument("--resume", action="store_true", help="continue the interrupted run in OUT")
    output.add_argument("--overwrite", action="store_true", help="replace the run in OUT")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in fields(Settings):
        metadata = setting.metadata
        if not metadata or metadata.get("hidden"):
            continue
        group = groups.setdefault(metadata["group"], parser.add_argument_group(metadata["group"]))
        _add_setting(group, setting)
    for name, (option, recipes) in recipe_options().items():
        _add_recipe_option(groups["recipe"], name, option, recipes)


def _add_recipe_option(group: argparse._ArgumentGroup, name: str, option: Field[Any], recipes: list[str]) -> None:
    flag, prefix = f"--{name.replace('_', '-')}", "" if len(recipes) == len(RECIPES) else f"{', '.join(recipes)}: "
    help = prefix + _help(option)
    if option.type == "bool":
        group.add_argument(flag, action="store_true", default=None, help=help)
        return
    types: dict[str, Callable[[str], Any]] = {"float": float, "int": int}
    choices = option.metadata["choices"]
    group.add_argument(
        flag,
        type=types.get(str(option.type), str),
        choices=choices,
        metavar=None if choices else name[0].upper(),
        help=help,
    )


def _add_setting(group: argparse._ArgumentGroup, setting: Field[Any]) -> None:
    flag, metadata = f"--{setting.name.replace('_', '-')}", setting.metadata
    if setting.type == "bool":
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=_help(setting))
        return
    types: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "Any": _word_or_numbers}
    parse = types[str(setting.type).removesuffix(" | None")]
    usual = "N" if parse is int else "X" if parse is float else setting.name.split("_")[-1].upper()
    metavar = None if "choices" in metadata else metadata.get("metavar") or usual
    group.add_argument(flag, type=parse, choices=metadata.get("choices"), metavar=metavar, help=_help(setting))


def _help(field: Field[Any]) -> str:
    """Return the help text of a field with its default."""
    has_default = field.default not in (None, MISSING, "") and not isinstance(field.default, bool)
    default = f" (default: {field.default})" if has_default else ""
    return str(field.metadata["help"]).replace("%", "%%") + default


def _word_or_numbers(text: str) -> Any:
    """Parse a number, several numbers separated by commas, or a word."""
    try:
        numbers = [int(part) if part.strip().lstrip("-").isdigit() else float(part) for part in text.split(",")]
    except ValueError:
        return text
    return numbers if "," in text else numbers[0]


def run(args: argparse.Namespace) -> int:
    """Train once, or once per seed, and print the scores."""
    if args.recipe == "list":
        echo("\n".join(map(_describe, RECIPES.values())))
        return 0
    from offramp.api.train import train

    names = [field.name for field in fields(Settings) if field.name not in ("backbone", "output")]
    options = {name: getattr(args, name, None) for name in (*names, *recipe_options())}
    result = arguments.call(train, args, **{name: value for name, value in options.items() if value is not None})
    if isinstance(result, list):
        from offramp.training.seeds import summary_table

        _echo_once(summary_table(Path(args.output), result), args.output)
    else:
        _echo_once(f"{result.table()}\nWrote {result.folder}.", result.folder)
    return 0


def _echo_once(text: str, written: Path | str) -> None:
    """Print from the first process only."""
    if int(os.environ.get("RANK", "0")) == 0:
        echo(text, written)


def _describe(recipe: type[Recipe]) -> str:
    options = {name: option.default for name, option in option_fields(recipe).items() if name != "faithful"}
    published = recipe.published
    lines = [f"{recipe.name:<20} {recipe.description}", *([f"{'':<20} {recipe.paper}"] if recipe.paper else [])]
    lines.append(
        f"{'':<20} epochs {published.epochs:g}, batch size {published.batch_size}, "
        f"learning rate {published.learning_rate:g}, weight decay {published.weight_decay:g}, "
        f"warm-up {published.warmup:g}" + (f"; options {json.dumps(options)}" if options else "")
    )
    return "\n".join(lines)
