"""Random calls by seed, with odd options and odd output paths, from the options that each command declares."""

from __future__ import annotations

import argparse
import importlib
import os
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.odd_world import ONE_STEP, USUAL

NUMBERS = """
    0 -1 -0 1 2 3 4 7 0.5 1.5 -0.5 0.999999 1e3 1e308 1e-320 1e400 nan inf -inf 1000000000 1,2 1,,2 , 1, 4,3 1,1 1;2 +1
    0.1,0.2,0.3 1,2,3,4 0.1,nan ² ½ ١ 1_000 0x10 1.0 --1
"""
WORDS = "True none None null [] {} x é 💥 - -- -x --overwrite * $HOME %s %(prog)s {0} \\ ' \" a,b a,a :"
PATHS = """
    . .. model data data/texts.txt data/dev.csv no/such run neighbour neighbour.txt glue glue/SST-2/dev.tsv begun
    encoder model/config.json trace.safetensors reference.csv config.yaml
"""
POLICIES = """
    entropy entropy: entropy:0.2 entropy:nan entropy:-1 entropy:1e9 entropy:0.1,0.2,0.3 entropy:0.1,0.2 entropy=0.2
    entropy:0.1:0.2:0.3 Entropy:0.2 entropy:٠.٢ patience:0 patience:1 patience:1e9 patience:1.5 patience:1:0.1 layer:1
    layer:99 layer:x never never:1 ::: learned:0.1 margin:0.8 confidence:0.9 vote:3 vote:1.5:0.5 oracle
    patience-confidence:2:0.3
"""
NAMED = """
    sst-2 mnli ax sts-b elue-sst-2 elue-mrpc SST-2 dev train test validation calibration acc f1 mcc pearson f1_macro
    accuracy text label text,label sentence 1 2 all auto mean last first balanced linear pooler shared family joint
    deebert berxit romebert-sd cosine tensorboard wandb cuda cuda:1 cpu meta cpu:7 mps float16 pabee elasticbert
"""
VALUES = {
    "numbers": [*NUMBERS.split(), "9" * 30, "9" * 5000, "1 2", " 1"],
    "words": [*WORDS.split(), "", " ", "\t", "a\nb", "a\u2028b", "\udcff", "x" * 300, "x" * 5000],
    "paths": PATHS.split(),
    "policies": POLICIES.split(),
    "named": NAMED.split(),
}


@cache
def options_of(command: str) -> list[argparse.Action]:
    """Return every option of a command."""
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(f"offramp.cli.{command}").add_arguments(parser)
    return [action for action in parser._actions if action.option_strings]


def _value(action: argparse.Action, chance: random.Random) -> str:
    """Return a value that mostly fits the option."""
    if action.choices and chance.random() < 0.7:
        return str(chance.choice([*action.choices]))
    paths = VALUES["paths"]
    usual = {"policy": VALUES["policies"], "output": ["out", "-", *paths]}
    usual |= dict.fromkeys(("config", "trace", "file"), paths)
    if action.dest in usual and chance.random() < 0.7:
        return chance.choice(usual[action.dest])
    if action.type is not None and chance.random() < 0.7:
        return chance.choice(VALUES["numbers"])
    return chance.choice(VALUES[chance.choice(["numbers", *VALUES])])


def _option(action: argparse.Action, chance: random.Random) -> list[str]:
    name = chance.choice(action.option_strings)
    if chance.random() < 0.04 and len(name) > 5:
        name = name[:-2]  # argparse accepts an unambiguous prefix
    if action.nargs == 0:
        return [name] if chance.random() < 0.95 else [f"{name}=x"]
    if chance.random() < 0.04:
        return [name]
    value = _value(action, chance)
    return [f"{name}={value}"] if chance.random() < 0.4 and name.startswith("--") else [name, value]


def odd_options(chance: random.Random) -> list[str]:
    """Return a call with a few random options, sometimes without a required argument."""
    command = chance.choice([*USUAL, "predict", "evaluate", "calibrate", "train", "compare"])
    call = list(USUAL[command])
    for action in chance.choices(options_of(command), k=chance.choice([1, 1, 1, 2, 2, 3])):
        call += _option(action, chance)
    change = chance.random()
    if change < 0.05:
        del call[chance.randrange(1, len(call))]
    elif change < 0.08:
        call.insert(chance.randrange(1, len(call) + 1), chance.choice(["--", "stray", "", "-", "--strange", "-h"]))
    elif change < 0.1:
        call[0] = chance.choice(["", "Predict", "predcit", "-x", "--version", "--help", "a\nb", "\udcff", "--"])
    elif change < 0.14 and len(call) > 1:
        call[1] = chance.choice([*VALUES["paths"], *VALUES["words"]])
    if command == "train":
        call += ONE_STEP
    return call


# -- output paths -------------------------------------------------------------------------


def _link(name: str, target: str) -> str:
    Path(name).symlink_to(target)
    return name


def _folder(name: str, *files: str, mode: int = 0o755) -> str:
    Path(name).mkdir()
    for file in files:
        (Path(name) / file).write_text("mine\n")
    Path(name).chmod(mode)
    return name


def _file(name: str, mode: int = 0o644) -> str:
    Path(name).write_text("mine\n")
    Path(name).chmod(mode)
    return name


def _pipe(name: str) -> str:
    """Make a named pipe with a reader."""
    os.mkfifo(name)
    os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    return name


def _under(folder: str, name: str) -> str:
    return f"{folder}/{name}"


TARGETS: dict[str, Callable[[], str]] = {
    "new": lambda: "out",
    "new, with an ending": lambda: "out.tsv",
    "a file": lambda: _file("there.jsonl"),
    "a file that is read-only": lambda: _file("there.jsonl", 0o444),
    "an empty folder": lambda: _folder("there"),
    "a folder of the user": lambda: "neighbour",
    "an offramp folder with a file of the user": lambda: _folder("there", "config.json", "results.json", "thesis.tex"),
    "a folder that looks like offramp's": lambda: _folder("there", "config.json", "README.md"),
    "an earlier run": lambda: "run",
    "an interrupted run": lambda: "begun",
    "the model": lambda: "model",
    "another model": lambda: "multi",
    "the encoder": lambda: "encoder",
    "the checkpoint": lambda: "checkpoint",
    "the data": lambda: "data",
    "the texts": lambda: "data/texts.txt",
    "the rows": lambda: "data/dev.csv",
    "in the model": lambda: "model/out",
    "in the data": lambda: "data/out",
    "the config": lambda: "model/config.json",
    "a link to a folder": lambda: _link("there", "neighbour"),
    "a link to an empty folder": lambda: _link("there", _folder("empty")),
    "a link to an earlier run": lambda: _link("there", "run"),
    "a link to the model": lambda: _link("there", "model"),
    "a link to a file": lambda: _link("there", "neighbour.txt"),
    "a dangling link": lambda: _link("there", "nowhere"),
    "a link that dangles far": lambda: _link("there", "no/where"),
    "a loop": lambda: _link("there", "there"),
    "behind a linked folder": lambda: _under(_link("there", "data"), "out"),
    "under a file": lambda: "neighbour.txt/out",
    "under nothing": lambda: "no/such/out",
    "in a folder to read only": lambda: _under(_folder("locked", mode=0o555), "out"),
    "in a folder without permissions": lambda: _under(_folder("locked", mode=0), "out"),
    "a folder without permissions": lambda: _folder("locked", "x", mode=0),
    "a named pipe": lambda: _pipe("pipe"),
    "with spaces": lambda: "my own result",
    "with other letters": lambda: "résultat 💥.jsonl",
    "with a dash": lambda: "-out",
    "with an end of line": lambda: "new\nline",
    "not in UTF-8": lambda: "\udcff\udcfe",
    "with a percent sign": lambda: "100%s",
    "of 255 letters": lambda: "x" * 255,
    "of 250 letters": lambda: "x" * 250,
    "too long": lambda: "x" * 300,
    "with a slash behind": lambda: "out/",
    "here": lambda: ".",
    "above": lambda: "..",
    "around": lambda: "data/../out",
    "nothing": lambda: "",
    "a dash": lambda: "-",
    "a hidden path": lambda: ".out",
}
DEVICES = {"the null device": "/dev/null", "a full disk": "/dev/full"}
GLUE = ["predict", "model", "glue/SST-2/dev.tsv", "--format", "glue", "--task", "sst-2"]
WRITERS: dict[str, list[str]] = {
    "predict": USUAL["predict"],
    "predict tsv": [*USUAL["predict"], "--format", "tsv", "--all-scores"],
    "predict glue": GLUE,
    "evaluate": [part for part in USUAL["evaluate"] if part not in ("--output", "out")],
    "evaluate checkpoints": ["evaluate", "begun", "--no-live", "--policy", "patience", "--all-checkpoints"],
    "evaluate trace": USUAL["evaluate"],
    "calibrate trace": [*USUAL["calibrate"][:-2], "--speedup", "1.5"],
    "compare": USUAL["compare"],
    "convert": USUAL["convert"][:2],
    "train": [part for part in USUAL["train"] if part not in ("--output", "out")],
    "train seeds": [*(part for part in USUAL["train"] if part not in ("--output", "out")), "--seeds", "1,2"],
    "train resume": [*(part for part in USUAL["train"] if part not in ("--output", "out")), "--resume"],
}


def odd_output(chance: random.Random) -> tuple[list[str], str, str]:
    """Return a call that writes to an odd path, the path, and a description."""
    writer = chance.choice([*WRITERS])
    kind = chance.choice([*TARGETS])
    target = TARGETS[kind]()
    if writer in ("predict", "predict tsv") and chance.random() < 0.05:
        kind, target = chance.choice([*DEVICES.items()])
    option = "--trace" if writer.endswith("trace") else chance.choice(["--output", "--output", "-o"])
    glued = target.startswith("-") and target != "-" and chance.random() < 0.7
    call = [*WRITERS[writer], *([f"{option}={target}"] if glued and option != "-o" else [option, target])]
    if chance.random() < 0.6 and not writer.endswith("trace"):
        call.append("--overwrite")
    return call, target, f"{writer} into {kind}"
