"""Options that several commands share, with one name and one meaning, and how a command calls its function."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from offramp.api.options import arguments_of
from offramp.policies import TABLE
from offramp.runtimes import RUNTIMES
from offramp.runtimes.loading import DTYPES

__all__ = [
    "Options",
    "add_machine",
    "add_model",
    "add_output",
    "add_policy",
    "call",
    "counts",
    "layers",
    "numbers",
    "words",
]

Options = argparse.ArgumentParser | argparse._ArgumentGroup


def call(function: Callable[..., Any], args: argparse.Namespace, **more: Any) -> Any:
    """The command's function with what was given; options that were not given are the function's own defaults."""
    given = {name: getattr(args, name) for name in arguments_of(function) if hasattr(args, name)}
    return function(**given | more)


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model that a command reads."""
    parser.add_argument("model", metavar="MODEL", help="a model folder, or a name on the Hub")


def add_machine(parser: argparse.ArgumentParser) -> None:
    """What a model runs on, and how much of a text it reads."""
    group = parser.add_argument_group("machine")
    group.add_argument("--backend", choices=list(RUNTIMES), default="torch", help="what runs it (default: torch)")
    group.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, mps … (default: an accelerator if available)")
    group.add_argument("--dtype", choices=DTYPES, help="what it computes in (default: float32)")
    group.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: as torch chooses)")
    length = "maximum tokens of a text (or of a window); the rest is cut (default: the model's own)"
    group.add_argument("--max-length", type=int, metavar="N", help=length)


def add_policy(parser: Options, default: str) -> None:
    """The exit policy."""
    examples = ", ".join(example for example, _, _ in TABLE.values())
    parser.add_argument("--policy", metavar="P", help=f"exit policy: {examples} (default: {default})")


def add_output(parser: Options, *, required: bool, what: str) -> None:
    """Where a result goes."""
    parser.add_argument("--output", "-o", metavar="OUT", required=required, help=what)
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")


def numbers(written: str) -> float | tuple[float, ...]:
    """One number, or several separated by commas."""
    if "," in written:
        return tuple(float(one) for one in written.split(","))
    return float(written)


def several(written: str) -> tuple[float, ...]:
    """Numbers between commas."""
    return tuple(float(one) for one in written.split(","))


def counts(written: str) -> tuple[int, ...]:
    """Whole numbers between commas."""
    return tuple(int(one) for one in written.split(","))


def words(written: str) -> tuple[str, ...]:
    """Words between commas."""
    return tuple(written.split(","))


def layers(written: str) -> str | list[int]:
    """Layers between commas, or the word all."""
    return written if written == "all" else [int(one) for one in written.split(",")]
