"""Put exits on an encoder and train them.

BACKBONE is a folder or a name on the Hub: an encoder, a fine-tuned classifier, or an offramp model. The data are a
task of GLUE, ELUE or SQuAD (from the Hub, or its official download), a data set on the Hub, or files of your
own.

Losses, epochs, batch size, rate, decay and warm-up that are not given are those of the recipe's authors. Not theirs
are: bare linear heads on the mean of the tokens, with a rate of their own (1e-3); the best epoch on dev instead of the
last; a tenth of the training rows set aside for calibrate; batches of like lengths. For the authors' own:
--faithful --pooling first --calibration-split 0 --select none --no-group-by-length (docs/originals.md).
Several GPUs: torchrun --nproc-per-node N -m offramp train …
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
from offramp.cli.streams import say
from offramp.training.recipes import RECIPES, Recipe, options_of, recipe_options
from offramp.training.settings import Settings

EXAMPLES = """\
examples:
  offramp train bert-base-uncased --task sst-2 --data-dir GLUE --recipe romebert-sd --output MODEL
  offramp train my-classifier --train-file train.csv --dev-file dev.csv --text-column review --output MODEL
  offramp train bert-base-uncased --task squad --data-dir SQuAD --output READER
  offramp train MODEL --task rte --recipe deebert --epochs 0,3 --output MODEL2     (exits only)
  offramp train --config MODEL/training.yaml --output AGAIN
  offramp train --recipe list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp train`: the fields of Settings, and how to start."""
    parser.add_argument("backbone", metavar="BACKBONE", nargs="?", help="a folder, or a name on the Hub")
    parser.add_argument("--output", "-o", metavar="OUT", help="the model folder to write")
    start = parser.add_argument_group("starting")
    start.add_argument("--config", metavar="FILE", help="options from a YAML or JSON file; others go before")
    start.add_argument("--resume", action="store_true", help="go on with the run in OUT")
    start.add_argument("--overwrite", action="store_true", help="replace the run in OUT")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for one in fields(Settings):
        about = one.metadata
        if not about or about.get("hidden"):
            continue
        group = groups.setdefault(about["group"], parser.add_argument_group(about["group"]))
        _add(group, one)
    for name, option in recipe_options().items():
        _add_recipe_option(groups["recipe"], name, *option)


def _add_recipe_option(group: argparse._ArgumentGroup, name: str, option: Field[Any], recipes: list[str]) -> None:
    flag, about = f"--{name.replace('_', '-')}", option.metadata["help"].replace("%", "%%")
    whose = "" if len(recipes) == len(RECIPES) else f"{', '.join(recipes)}: "
    if option.type == "bool":
        group.add_argument(flag, action="store_true", default=None, help=whose + about)
        return
    kinds: dict[str, Callable[[str], Any]] = {"float": float, "int": int}
    kind = kinds.get(str(option.type), str)
    choices = option.metadata["choices"]
    group.add_argument(
        flag,
        type=kind,
        choices=choices,
        metavar=None if choices else name[0].upper(),
        help=f"{whose}{about} ({option.default})",
    )


def _add(group: argparse._ArgumentGroup, setting: Field[Any]) -> None:
    flag, about = f"--{setting.name.replace('_', '-')}", setting.metadata
    shown = "" if setting.default in (None, MISSING) or isinstance(setting.default, bool) else f" ({setting.default})"
    text = about["help"].replace("%", "%%") + shown
    if setting.type == "bool":
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        return
    kinds: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "Any": _several}
    kind = kinds[str(setting.type).removesuffix(" | None")]
    usual = "N" if kind is int else "X" if kind is float else setting.name.split("_")[-1].upper()
    metavar = about.get("metavar") or usual
    group.add_argument(
        flag, type=kind, choices=about.get("choices"), metavar=None if "choices" in about else metavar, help=text
    )


def _several(written: str) -> Any:
    """A word, a number, or a list of numbers between commas."""
    try:
        numbers = [int(one) if one.strip().lstrip("-").isdigit() else float(one) for one in written.split(",")]
    except ValueError:
        return written
    return numbers if "," in written else numbers[0]


def run(args: argparse.Namespace) -> int:
    """Train once or once per seed, print the scores."""
    if args.recipe == "list":
        return _list_recipes()
    from offramp.api.train import train

    names = [field.name for field in fields(Settings) if field.name not in ("backbone", "output")]
    given = {name: getattr(args, name, None) for name in (*names, *recipe_options())}
    result = arguments.call(train, args, **{name: value for name, value in given.items() if value is not None})
    if isinstance(result, list):
        from offramp.training.seeds import summary

        _tell(summary(Path(args.output), result), args.output)
    else:
        _tell(f"{result.table()}\nWrote {result.folder}.", result.folder)
    return 0


def _tell(text: str, written: Path | str) -> None:
    """Of several processes the first one speaks."""
    if int(os.environ.get("RANK", "0")) == 0:
        say(text, written)


def _list_recipes() -> int:
    say("\n".join(map(_described, RECIPES.values())))
    return 0


def _described(recipe: type[Recipe]) -> str:
    own = {name: option.default for name, option in options_of(recipe).items() if name != "faithful"}
    usual = recipe.published
    lines = [f"{recipe.name:<20} {recipe.about}", *([f"{'':<20} {recipe.paper}"] if recipe.paper else [])]
    lines.append(
        f"{'':<20} epochs {usual.epochs:g}, batch {usual.batch_size}, learning rate {usual.learning_rate:g}, "
        f"decay {usual.weight_decay:g}, warm-up {usual.warmup:g}" + (f"; options {json.dumps(own)}" if own else "")
    )
    return "\n".join(lines)
